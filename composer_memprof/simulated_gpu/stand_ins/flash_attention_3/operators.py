"""The operators that flash-attn 3 registers with torch, by their names: those on simulated tensors, and on none (fake)."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor
from torch.library import custom_op, register_fake

from composer_memprof.simulated_gpu.stand_ins.flash_attention_3 import kernels
from composer_memprof.simulated_gpu.stand_ins.flash_attention_3.kernels import Lengths, Mask

_NAMESPACE = 'flash_attn_3'


def _by_width(tensor: Tensor) -> Tensor:
    """The elements of a head beside each other."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@custom_op(f'{_NAMESPACE}::_flash_attn_forward', mutates_args=(), device_types='cuda')
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_new: Optional[Tensor] = None,
    v_new: Optional[Tensor] = None,
    qv: Optional[Tensor] = None,
    out_: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    page_table: Optional[Tensor] = None,
    kv_batch_idx: Optional[Tensor] = None,
    leftpad_k: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    seqlens_rotary: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Optional[Tensor] = None,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_caches = (k_new, v_new, page_table, kv_batch_idx, leftpad_k, rotary_cos, scheduler_metadata)
    if any(each is not None for each in of_caches):
        raise RuntimeError('the stand-in of flash-attn 3 has no attention with a cache of keys and values')
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k)
    mask = Mask(causal, window_size_left, window_size_right, attention_chunk)
    q, k, v = _by_width(q), _by_width(k), _by_width(v)
    out, logsumexp, accumulators = kernels.fwd(q, k, v, out_, lengths, mask, num_splits)
    outs, logsumexps = accumulators or (_empty(q), _empty(q))
    return out, logsumexp, outs, logsumexps


@custom_op(f'{_NAMESPACE}::_flash_attn_backward', mutates_args=('dq', 'dk', 'dv'), device_types='cuda')
def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    sequed_q: Optional[Tensor] = None,
    sequed_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    dq: Optional[Tensor] = None,
    dk: Optional[Tensor] = None,
    dv: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> Tensor:
    dout, q, k, v, out = map(_by_width, (dout, q, k, v, out))
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q, max_seqlen_k)
    mask = Mask(is_causal, window_size_left, window_size_right)
    return kernels.bwd(q, k, v, (dq, dk, dv), lengths, mask, softcap, deterministic)[-1]


@register_fake(f'{_NAMESPACE}::_flash_attn_forward')
def _(q: Tensor, k: Tensor, v: Tensor, *rest: object, **named: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    splits = named.get('num_splits', rest[28] if len(rest) > 28 else 1)
    assert isinstance(splits, int)
    outs, logsumexps = kernels.split_outputs(q, v, splits) or (_empty(q), _empty(q))
    return kernels.output(q, v), kernels.floats(q, *kernels.per_query(q)), outs, logsumexps


@register_fake(f'{_NAMESPACE}::_flash_attn_backward')
def _(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    sequed_q: Optional[Tensor] = None,
    sequed_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    dq: Optional[Tensor] = None,
    dk: Optional[Tensor] = None,
    dv: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> Tensor:
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q, max_seqlen_k)
    mask = Mask(is_causal, window_size_left, window_size_right)
    return kernels.sums_of_gradients(q, k, v, lengths, mask, softcap)


def _empty(q: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.float32, device=q.device)
