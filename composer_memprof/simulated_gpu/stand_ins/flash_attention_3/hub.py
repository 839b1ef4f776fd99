"""flash-attn 3 as a kernel of the Hugging Face hub has it: its functions, and the module ``flash_attn_interface``."""

from __future__ import annotations

from composer_memprof.simulated_gpu.stand_ins.flash_attention_3 import attention as flash_attn_interface
from composer_memprof.simulated_gpu.stand_ins.flash_attention_3.attention import (
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
)

__all__ = ['flash_attn_func', 'flash_attn_interface', 'flash_attn_qkvpacked_func', 'flash_attn_varlen_func']
