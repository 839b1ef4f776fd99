"""The page of a whole run: the verdict, what to change, and pictures of all ranks."""
