"""Memory by category and module: the recorder, its log of storages, the timeline, and the running module."""
