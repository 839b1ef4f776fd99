"""The callbacks in a training loop of one's own, and in the Trainers of Transformers and Lightning."""
