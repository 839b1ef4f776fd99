"""The page of a memory snapshot: allocations over time, call tree, list, segments, failure."""
