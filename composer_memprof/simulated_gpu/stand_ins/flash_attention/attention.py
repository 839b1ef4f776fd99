"""Attention: the functions of ``flash_attn``, and what they keep for backward.

Queries, keys and values are (batch, length, heads, width), or (tokens, heads, width) of several lengths (``varlen``). Packed
ones have a dimension for what they are before the heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from composer_memprof.simulated_gpu.stand_ins.flash_attention import operators

#: Arguments of ``_Attention`` that are no tensors of queries, keys and values.
_SETTINGS = 14


class _Attention(torch.autograd.Function):
    """Of queries, keys and values; of queries, and both others packed; or of all packed."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        dropout_p: float,
        softmax_scale: Optional[float],
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
        alibi_slopes: Optional[Tensor],
        deterministic: bool,
        return_softmax: bool,
        is_grad_enabled: bool,
        cu_seqlens_q: Optional[Tensor],
        cu_seqlens_k: Optional[Tensor],
        max_seqlen_q: int,
        max_seqlen_k: int,
        block_table: Optional[Tensor],
        *given: Tensor,
    ) -> Any:
        needs_gradient = is_grad_enabled and any(tensor.requires_grad for tensor in given)
        width = given[0].shape[-1]
        scale = width**-0.5 if softmax_scale is None else softmax_scale
        q, k, v = (_padded(tensor, width) for tensor in _unpacked(given))
        about = (dropout_p, scale, causal, window_size[0], window_size[1], softcap, alibi_slopes)
        with_scores = return_softmax and dropout_p > 0
        if cu_seqlens_q is None or cu_seqlens_k is None:
            out, logsumexp, scores, state = operators.forward(q, k, v, *about, with_scores)
            lengths: tuple[Tensor, ...] = ()
        else:
            lengths = (cu_seqlens_q,) if cu_seqlens_k is cu_seqlens_q else (cu_seqlens_q, cu_seqlens_k)
            out, logsumexp, scores, state = operators.varlen_forward(
                q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *about, with_scores, block_table
            )
        if needs_gradient:
            ctx.save_for_backward(q, k, v, out, logsumexp, state, *lengths)
            ctx.about = (*about, deterministic)
            ctx.longest = (max_seqlen_q, max_seqlen_k)
            ctx.given = len(given)
        result = out[..., :width]
        return (result, logsumexp, scores) if return_softmax else result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:  # type: ignore[override]
        q, k, v, out, logsumexp, state, *lengths = ctx.saved_tensors
        packed, into = _gradients(ctx.given, q, k, v)
        width = gradient.shape[-1]
        tensors = (_padded(gradient, width), q, k, v, out, logsumexp, *into)
        if lengths:
            operators.varlen_backward(*tensors, lengths[0], lengths[-1], *ctx.longest, *ctx.about, rng_state=state)
        else:
            operators.backward(*tensors, *ctx.about, rng_state=state)
        return (*(None,) * _SETTINGS, *(each[..., :width] for each in packed))


def _unpacked(given: Sequence[Tensor]) -> list[Tensor]:
    if len(given) == 3:
        return list(given)
    *first, packed = given
    return [*first, *(packed.select(-3, place).detach() for place in range(packed.shape[-3]))]


def _padded(tensor: Tensor, width: int) -> Tensor:
    """With zeros, up to what the kernels take."""
    return torch.nn.functional.pad(tensor, [0, 8 - width % 8]) if width % 8 else tensor


def _gradients(given: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of what was given, and their parts that belong to queries, keys and values."""
    if given == 3:
        each = [torch.empty_like(tensor) for tensor in (q, k, v)]
        return each, each
    of_queries = [torch.empty_like(q)] if given == 2 else []
    like = k if given == 2 else q
    parts = 2 if given == 2 else 3
    packed = torch.empty((*like.shape[:-2], parts, *like.shape[-2:]), dtype=like.dtype, device=like.device)
    return [*of_queries, packed], [*of_queries, *packed.unbind(-3)]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    about = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend(about, (q, k, v))


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    about = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend(about, (q, kv))


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    about = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend(about, (qkv,))


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Optional[Tensor] = None,
) -> Any:
    about = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend(about, (q, k, v), (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table))


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    about = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend(about, (q, kv), (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, None))


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    about = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend(about, (qkv,), (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, None))


def _attend(
    about: tuple[Any, ...], given: tuple[Tensor, ...], lengths: tuple[Any, ...] = (None, None, 0, 0, None)
) -> Any:
    return _Attention.apply(*about, torch.is_grad_enabled(), *lengths, *given)
