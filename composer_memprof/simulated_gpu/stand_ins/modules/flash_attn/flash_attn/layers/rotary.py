"""Rotary positions: a stand-in on a simulated GPU."""

from composer_memprof.simulated_gpu.stand_ins.flash_attention.rotary import (
    RotaryEmbedding as RotaryEmbedding,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention.rotary import (
    apply_rotary_emb as apply_rotary_emb,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention.rotary import (
    apply_rotary_emb_kv_ as apply_rotary_emb_kv_,
)
from composer_memprof.simulated_gpu.stand_ins.flash_attention.rotary import (
    apply_rotary_emb_qkv_ as apply_rotary_emb_qkv_,
)

apply_rotary_emb_func = apply_rotary_emb
