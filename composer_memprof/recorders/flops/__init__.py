"""Floating-point operations: the recorder, the formulas of operators, and the peak of a CPU."""
