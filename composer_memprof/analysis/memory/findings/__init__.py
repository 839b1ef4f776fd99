"""Findings about the blocks of a snapshot: the peak, growth, fragmentation, failures, repeated calls, differences."""
