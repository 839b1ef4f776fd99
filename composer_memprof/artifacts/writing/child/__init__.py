"""The forked child that writes a window: its start, its work, and the memory and file descriptors that it needs."""
