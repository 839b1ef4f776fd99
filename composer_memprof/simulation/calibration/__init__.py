"""Factors between a torch trace of a real GPU and the trace of the same step on the simulated one."""
