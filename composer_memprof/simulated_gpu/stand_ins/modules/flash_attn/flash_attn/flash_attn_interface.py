"""Attention: a stand-in on a simulated GPU."""

from composer_memprof.simulated_gpu.stand_ins.flash_attention import operators
from composer_memprof.simulated_gpu.stand_ins.flash_attention.attention import (
    flash_attn_func as flash_attn_func,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention.attention import (
    flash_attn_kvpacked_func as flash_attn_kvpacked_func,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention.attention import (
    flash_attn_qkvpacked_func as flash_attn_qkvpacked_func,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention.attention import (
    flash_attn_varlen_func as flash_attn_varlen_func,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention.attention import (
    flash_attn_varlen_kvpacked_func as flash_attn_varlen_kvpacked_func,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention.attention import (
    flash_attn_varlen_qkvpacked_func as flash_attn_varlen_qkvpacked_func,
)

_flash_attn_forward, _flash_attn_backward = operators.forward, operators.backward
_flash_attn_varlen_forward, _flash_attn_varlen_backward = operators.varlen_forward, operators.varlen_backward
