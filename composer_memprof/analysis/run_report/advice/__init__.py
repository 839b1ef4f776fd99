"""What to change in a run."""
