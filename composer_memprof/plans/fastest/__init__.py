"""The fastest way to train a config that fits: microbatch, checkpointing, resharding, units and offload, by trials."""
