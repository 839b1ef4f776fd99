"""Memory at the start and the end of functions: the recorder, its sources, which functions, and the marks on them."""
