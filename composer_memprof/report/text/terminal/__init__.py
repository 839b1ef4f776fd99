"""Tables and live output for a terminal."""
