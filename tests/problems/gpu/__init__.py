"""Memory of a GPU that runs out."""
