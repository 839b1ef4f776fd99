"""Norms: a stand-in on a simulated GPU."""

from composer_memprof.simulated_gpu.stand_ins.flash_attention.norms import RMSNorm as RMSNorm
from composer_memprof.simulated_gpu.stand_ins.flash_attention.norms import layer_norm_fn as layer_norm_fn
from composer_memprof.simulated_gpu.stand_ins.flash_attention.norms import rms_norm_fn as rms_norm_fn
