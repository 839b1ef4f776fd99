"""What the command ``plan`` prints."""
