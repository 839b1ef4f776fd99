"""Pieces of single callbacks that are too large for their file: of MemProfiler, MemorySnapshot and Flops."""
