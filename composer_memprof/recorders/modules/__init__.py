"""Memory by category and module: the recorder, its log of storages, and which module runs."""
