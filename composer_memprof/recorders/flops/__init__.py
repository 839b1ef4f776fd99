"""Floating-point operations of a batch: the recorder, the formulas, and a CPU's measured peak."""
