"""Memory at the start and end of functions: the recorder, its sources, the selection of functions, and the marks."""
