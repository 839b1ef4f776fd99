"""Kernels of the Hugging Face hub: a stand-in on a simulated GPU."""

from composer_memprof.simulated_gpu.stand_ins.hub_kernels import get_kernel as get_kernel
from composer_memprof.simulated_gpu.stand_ins.hub_kernels import has_kernel as has_kernel
