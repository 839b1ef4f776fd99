"""Norms of the separate extension ``dropout_layer_norm``: a stand-in on a simulated GPU."""

from composer_memprof.simulated_gpu.stand_ins.flash_attention.separate_norms import RMSNorm as RMSNorm
from composer_memprof.simulated_gpu.stand_ins.flash_attention.separate_norms import rms_norm as rms_norm
