"""For tests of GPU memory: a pytest plugin that runs marked tests on a simulated GPU, and measures blocks of them."""
