"""flash-attn 3: a stand-in on a simulated GPU."""

from composer_memprof.simulated_gpu.stand_ins.flash_attention_3 import operators
from composer_memprof.simulated_gpu.stand_ins.flash_attention_3.attention import (
    flash_attn_func as flash_attn_func,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention_3.attention import (
    flash_attn_qkvpacked_func as flash_attn_qkvpacked_func,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention_3.attention import (
    flash_attn_varlen_func as flash_attn_varlen_func,
)

_flash_attn_forward, _flash_attn_backward = operators.forward, operators.backward
