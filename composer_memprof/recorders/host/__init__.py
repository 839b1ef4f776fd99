"""Host memory: the recorder, readings of processes and cgroups, and whether a series grows."""
