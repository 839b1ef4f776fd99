"""Uploads: destinations, the sending of a file, and the wait for uploads at the end of a run."""
