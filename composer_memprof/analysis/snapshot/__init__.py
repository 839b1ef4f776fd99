"""Memory snapshots as columns: the model, and loading files that are not trusted (no code is run, time is limited)."""
