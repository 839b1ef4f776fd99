"""Sentences: the verdict on a run, and what to change."""
