"""Reading what a run has written: its manifest, and its files in a store."""
