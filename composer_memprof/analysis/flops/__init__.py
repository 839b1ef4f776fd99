"""Rates from counted FLOPs and measured time, and the formula for GPT-style models."""
