"""Flops: the callback, and how it counts a compiled model and finds the peak of the device."""
