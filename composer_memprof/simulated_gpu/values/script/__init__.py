"""What the source of a script does with a value that it reads."""
