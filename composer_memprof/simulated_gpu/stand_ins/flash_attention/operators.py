"""The operators that flash-attn registers with torch, by their names: those on simulated tensors, and on none (fake)."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor
from torch.library import custom_op, register_fake

from composer_memprof.simulated_gpu.stand_ins.flash_attention import kernels

_NAMESPACE = 'flash_attn'


def _by_width(*tensors: Tensor) -> list[Tensor]:
    """The elements of a head beside each other."""
    return [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in tensors]


@custom_op(f'{_NAMESPACE}::_flash_attn_forward', mutates_args=(), device_types='cuda')
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = _by_width(q, k, v)
    out, logsumexp, scores, state = kernels.fwd(
        q,
        k,
        v,
        None,
        alibi_slopes,
        dropout_p,
        softmax_scale,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        return_softmax,
        None,
    )
    return out, logsumexp, scores, state


@custom_op(f'{_NAMESPACE}::_flash_attn_varlen_forward', mutates_args=(), device_types='cuda')
def varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    return_softmax: bool = False,
    block_table: Optional[Tensor] = None,
    leftpad_k: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = _by_width(q, k, v)
    out, logsumexp, scores, state = kernels.varlen_fwd(
        q,
        k,
        v,
        None,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        leftpad_k,
        block_table,
        alibi_slopes,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        zero_tensors,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        return_softmax,
        None,
    )
    return out, logsumexp, scores, state


@custom_op(f'{_NAMESPACE}::_flash_attn_backward', mutates_args=('dq', 'dk', 'dv'), device_types='cuda')
def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    deterministic: bool,
    rng_state: Optional[Tensor] = None,
) -> Tensor:
    dout, q, k, v, out = _by_width(dout, q, k, v, out)
    return kernels.bwd(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        dq,
        dk,
        dv,
        alibi_slopes,
        dropout_p,
        softmax_scale,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        deterministic,
        None,
        rng_state,
    )[3]


@custom_op(f'{_NAMESPACE}::_flash_attn_varlen_backward', mutates_args=('dq', 'dk', 'dv'), device_types='cuda')
def varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    deterministic: bool,
    rng_state: Optional[Tensor] = None,
    zero_tensors: bool = False,
) -> Tensor:
    dout, q, k, v, out = _by_width(dout, q, k, v, out)
    return kernels.varlen_bwd(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        dq,
        dk,
        dv,
        cu_seqlens_q,
        cu_seqlens_k,
        alibi_slopes,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        zero_tensors,
        causal,
        window_size_left,
        window_size_right,
        softcap,
        deterministic,
        None,
        rng_state,
    )[3]


# -- without data: the shapes of what is returned, for torch.compile --------------------------------------------------


def _returned(q: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (q,) = _by_width(q)
    return torch.empty_like(q), kernels.floats(q, *shape), kernels.no_scores(q), kernels.random_state(q)


@register_fake(f'{_NAMESPACE}::_flash_attn_forward')
def _(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, *rest: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, heads, _ = q.shape
    found = _returned(q, (batch, heads, length))
    if not rest[-1]:
        return found
    return *found[:2], kernels.scores(q, batch, heads, length, k.shape[1], dropout_p), found[3]


@register_fake(f'{_NAMESPACE}::_flash_attn_varlen_forward')
def _(q: Tensor, *rest: object, **named: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _returned(q, (q.shape[1], q.shape[0]))


@register_fake(f'{_NAMESPACE}::_flash_attn_backward')
def _(dout: Tensor, q: Tensor, *rest: object, **named: object) -> Tensor:
    batch, length, heads, _ = q.shape
    return kernels.floats(q, batch, heads, kernels.rounded_rows(length))


@register_fake(f'{_NAMESPACE}::_flash_attn_varlen_backward')
def _(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    cu_seqlens_q: Tensor,
    *rest: object,
    **named: object,
) -> Tensor:
    return kernels.floats(q, q.shape[1], kernels.rows_of_sequences(q, cu_seqlens_q))
