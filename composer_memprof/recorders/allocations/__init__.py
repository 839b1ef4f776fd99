"""Memory snapshots: the CUDA allocator's history, the same on a CPU, what is noted beside it, and running out of memory."""
