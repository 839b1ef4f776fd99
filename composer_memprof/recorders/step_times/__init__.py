"""Times of the phases of batches: the recorder, its clocks (a GPU's by CUDA events, or the host's), the summary."""
