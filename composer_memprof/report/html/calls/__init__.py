"""The page of Python calls over time."""
