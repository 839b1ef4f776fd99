"""Host memory: the recorder, the sampling thread, child processes, readings of processes and cgroups, and trends."""
