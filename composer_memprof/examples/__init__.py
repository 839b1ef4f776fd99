"""A model and data that every machine has, to try the callbacks on."""
