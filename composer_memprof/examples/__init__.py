"""A small model and its data, for runs that need no download."""
