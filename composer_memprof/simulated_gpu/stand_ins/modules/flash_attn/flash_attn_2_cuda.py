"""The kernels of flash-attn: a stand-in on a simulated GPU."""

from composer_memprof.simulated_gpu.stand_ins.flash_attention.kernels import bwd as bwd
from composer_memprof.simulated_gpu.stand_ins.flash_attention.kernels import fwd as fwd
from composer_memprof.simulated_gpu.stand_ins.flash_attention.kernels import varlen_bwd as varlen_bwd
from composer_memprof.simulated_gpu.stand_ins.flash_attention.kernels import varlen_fwd as varlen_fwd
