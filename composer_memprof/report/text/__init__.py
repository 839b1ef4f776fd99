"""Tables and lines for terminals and text files."""
