"""A trace of the step that was timed: what each stream of the simulated GPU and the host did, and when."""
