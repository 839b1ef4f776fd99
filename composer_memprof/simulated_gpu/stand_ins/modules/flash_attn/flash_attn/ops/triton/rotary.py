"""Rotary positions: a stand-in on a simulated GPU."""

from composer_memprof.simulated_gpu.stand_ins.flash_attention.rotary import apply_rotary as apply_rotary
