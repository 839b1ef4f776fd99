"""Writing: each file whole or line by line, listed in the manifest, off the training thread."""
