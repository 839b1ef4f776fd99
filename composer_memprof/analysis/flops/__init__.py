"""FLOPs of a window: rates and utilization from counted FLOPs and measured time; the formula for GPT-style models."""
