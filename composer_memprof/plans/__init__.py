"""Will a run fit, what fills the memory, and what to change: a config, run for two batches on a simulated GPU."""
