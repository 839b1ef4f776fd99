"""What runs within the simulated process, beside the script."""
