"""Runs on a simulated GPU: any command, and what its memory came to."""
