"""Times of the phases of batches: the recorder, its timers (CUDA events or the host's clock), windows and summaries."""
