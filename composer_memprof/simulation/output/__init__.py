"""What ``simulate`` prints."""
