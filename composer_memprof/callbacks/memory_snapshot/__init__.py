"""MemorySnapshot: the callback, and its recording of allocations."""
