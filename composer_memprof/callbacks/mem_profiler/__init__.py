"""MemProfiler: the callback, its functions and files, readings by hand, and a loop without a Trainer."""
