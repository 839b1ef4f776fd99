"""Which operators of torch, and which kernels of Triton, launch kernels while a step is timed."""
