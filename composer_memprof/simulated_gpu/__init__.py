"""A GPU that is not there: CUDA's runtime in C, a table of devices, and the environment of a process that runs on one.

torch's dispatch, autograd and caching allocator run on it as they are; only kernels do not.
"""
