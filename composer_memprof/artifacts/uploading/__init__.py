"""Uploads: where files go, how one is sent, and what is waited for at the end of a run."""
