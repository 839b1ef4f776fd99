"""Attention: the functions of ``flash_attn_interface``, and what they keep for backward.

Queries, keys and values are (batch, length, heads, width), or (tokens, heads, width) of several lengths (``varlen``). Packed
ones have a dimension for what they are before the heads, or the heads of all three beside each other.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from composer_memprof.simulated_gpu.stand_ins.flash_attention_3 import operators

#: Arguments of ``_Attention`` before the tensors of queries, keys and values.
_SETTINGS = 18


class _Attention(torch.autograd.Function):
    """Of queries, keys and values, or of all of them packed."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        softmax_scale: Optional[float],
        causal: bool,
        qv: Optional[Tensor],
        descales: tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]],
        window_size: tuple[int, int],
        attention_chunk: int,
        softcap: float,
        num_splits: int,
        pack_gqa: Optional[bool],
        deterministic: bool,
        sm_margin: int,
        return_softmax: bool,
        num_heads_q: Optional[int],
        cu_seqlens_q: Optional[Tensor],
        cu_seqlens_k: Optional[Tensor],
        seqused_q: Optional[Tensor],
        seqused_k: Optional[Tensor],
        longest: tuple[Optional[int], Optional[int]],
        *given: Tensor,
    ) -> Any:
        q, k, v = given if len(given) == 3 else _unpacked(given[0], num_heads_q)
        if softmax_scale is None:
            softmax_scale = (q.shape[-1] + (0 if qv is None else qv.shape[-1])) ** -0.5
        out, logsumexp, *_ = operators.forward(
            q,
            k,
            v,
            qv=qv,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            max_seqlen_q=longest[0],
            max_seqlen_k=longest[1],
            q_descale=descales[0],
            k_descale=descales[1],
            v_descale=descales[2],
            softmax_scale=softmax_scale,
            causal=causal,
            window_size_left=window_size[0],
            window_size_right=window_size[1],
            attention_chunk=attention_chunk,
            softcap=softcap,
            num_splits=num_splits,
            pack_gqa=pack_gqa,
            sm_margin=sm_margin,
        )
        ctx.save_for_backward(q, k, v, out, logsumexp, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
        ctx.longest, ctx.scale, ctx.mask = longest, softmax_scale, (causal, window_size[0], window_size[1])
        ctx.rest = (softcap, deterministic, sm_margin)
        ctx.chunk, ctx.packed_dimensions = attention_chunk, given[0].dim() if len(given) == 1 else 0
        return (out, logsumexp) if return_softmax else out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:  # type: ignore[override]
        q, k, v, out, logsumexp, *lengths = ctx.saved_tensors
        if ctx.chunk:
            raise RuntimeError('flash-attn 3 has no backward with attention_chunk')
        packed, (dq, dk, dv) = _gradients(ctx.packed_dimensions, q, k, v)
        tensors = (gradient, q, k, v, out, logsumexp, *lengths)
        operators.backward(*tensors, *ctx.longest, dq, dk, dv, ctx.scale, *ctx.mask, *ctx.rest)
        return (*(None,) * _SETTINGS, *packed)


def _unpacked(qkv: Tensor, num_heads_q: Optional[int]) -> tuple[Tensor, Tensor, Tensor]:
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(-3)
        return q, k, v
    if num_heads_q is None:
        raise ValueError('heads beside each other need num_heads_q')
    heads = (qkv.shape[2] - num_heads_q) // 2
    q, k, v = qkv.split([num_heads_q, heads, heads], dim=-2)
    return q, k, v


def _gradients(packed_dimensions: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of what was given, and their parts that belong to queries, keys and values."""
    if not packed_dimensions:
        each = [torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)]
        return each, each
    if packed_dimensions == 5:
        packed = torch.empty((*q.shape[:-2], 3, *q.shape[-2:]), dtype=q.dtype, device=q.device)
        return [packed], list(packed.unbind(-3))
    heads = [q.shape[-2], k.shape[-2], k.shape[-2]]
    packed = torch.empty((*q.shape[:-2], sum(heads), q.shape[-1]), dtype=q.dtype, device=q.device)
    return [packed], list(packed.split(heads, dim=-2))


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    about = (softmax_scale, causal, qv, (q_descale, k_descale, v_descale), window_size, attention_chunk, softcap)
    settings = (num_splits, pack_gqa, deterministic, sm_margin, return_attn_probs, None)
    return _Attention.apply(*about, *settings, None, None, None, None, (None, None), q, k, v)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: Optional[int] = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    about = (softmax_scale, causal, None, (q_descale, k_descale, v_descale), window_size, attention_chunk, softcap)
    settings = (1, None, deterministic, sm_margin, return_attn_probs, num_heads_q)
    return _Attention.apply(*about, *settings, None, None, None, None, (None, None), qkv)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    about = (softmax_scale, causal, qv, (q_descale, k_descale, v_descale), window_size, attention_chunk, softcap)
    settings = (num_splits, pack_gqa, deterministic, sm_margin, return_attn_probs, None)
    lengths = (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, (max_seqlen_q, max_seqlen_k))
    return _Attention.apply(*about, *settings, *lengths, q, k, v)
