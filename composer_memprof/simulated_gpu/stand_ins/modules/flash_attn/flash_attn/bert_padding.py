"""Tokens of sequences without padding: a stand-in on a simulated GPU."""

from composer_memprof.simulated_gpu.stand_ins.flash_attention.padding import index_first_axis as index_first_axis
from composer_memprof.simulated_gpu.stand_ins.flash_attention.padding import (
    index_first_axis_residual as index_first_axis_residual,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention.padding import (
    index_put_first_axis as index_put_first_axis,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention.padding import pad_input as pad_input
from composer_memprof.simulated_gpu.stand_ins.flash_attention.padding import unpad_input as unpad_input
