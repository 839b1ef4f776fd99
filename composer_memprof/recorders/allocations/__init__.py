"""Memory snapshots: the CUDA allocator's history, the same on a CPU, the notes we add, and out-of-memory errors."""
