"""How long kernels take on a device: matrix products, attention, other operators, collectives."""
