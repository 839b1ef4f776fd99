"""Uploads of what a run left behind: the ``push`` command, and its child process at interpreter exit."""
