"""Training configurations of other projects, each on a simulated GPU and counted a second time: ``make accuracy ARGS=breadth``."""
