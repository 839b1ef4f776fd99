"""What follows from the blocks: the peak, growth, fragmentation, failures, repeated calls, differences."""
