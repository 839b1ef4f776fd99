"""Pieces of a single callback that are too large for its file. Each module names the callback that it belongs to."""
