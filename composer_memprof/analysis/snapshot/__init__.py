"""Memory snapshots as NumPy columns: the model, and a loader for files that are not trusted."""
