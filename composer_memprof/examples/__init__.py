"""A small model, its data and the shipped configs: runs that need no download."""
