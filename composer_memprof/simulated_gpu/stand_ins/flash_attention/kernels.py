"""The extension ``flash_attn_2_cuda``: what its functions allocate, and which calls they refuse.

Tensors of a batch are (batch, length, heads, width); those of sequences of several lengths are (tokens, heads, width),
with the sequences' first tokens in ``cu_seqlens``, int32.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch import Tensor

from composer_memprof.simulated_gpu.stand_ins.flash_attention import note_use
from composer_memprof.simulated_gpu.stand_ins.launching import start

#: Rows of a block of queries; buffers are rounded up to it.
_ROWS = 128
_MOST_SPLITS = 128


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    return_softmax: bool,
    gen: Any,
) -> list[Tensor]:
    """The output, the scores' logsumexp (batch, heads, length), the scores if asked for, and the state of dropout.

    Raises:
        RuntimeError: for a call that the kernels do not support.
    """
    note_use()
    _check(q, k, v)
    batch, length, heads, width = q.shape
    keys = k.shape[1]
    queries, of_queries = length, heads
    is_whole = window_size_left < 0 and window_size_right < 0
    if length == 1 and heads > k.shape[2] and is_whole and not p_dropout and alibi_slopes is None:
        queries, of_queries = heads // k.shape[2], k.shape[2]  # one query: its groups stand for the length
    if out is None:
        out = torch.empty_like(q)
    logsumexp = floats(q, batch, heads, length)
    returned = scores(q, batch, heads, length, keys, p_dropout) if return_softmax else no_scores(q)
    accumulators = _of_splits(q, batch, of_queries, width, queries, keys) if not p_dropout else ()
    return _forward_done(out, logsumexp, returned, accumulators)


def varlen_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Optional[Tensor],
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqused_k: Optional[Tensor],
    leftpad_k: Optional[Tensor],
    block_table: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    return_softmax: bool,
    gen: Any,
) -> list[Tensor]:
    """As :func:`fwd`; the logsumexp is (heads, tokens).

    Raises:
        RuntimeError: for a call that the kernels do not support.
    """
    note_use()
    _check(q, k, v, cu_seqlens_q, cu_seqlens_k)
    tokens, heads, width = q.shape
    batch = cu_seqlens_q.numel() - 1
    of_keys = k.shape[-2]
    if out is None:
        out = torch.empty_like(q)
    logsumexp = floats(q, heads, tokens)
    returned = scores(q, batch, heads, max_seqlen_q, max_seqlen_k, p_dropout) if return_softmax else no_scores(q)
    is_whole = window_size_left < 0 and window_size_right < 0
    accumulators: tuple[Tensor, ...] = ()
    if max_seqlen_q == 1 and heads > of_keys and is_whole and not p_dropout and alibi_slopes is None:
        accumulators = _of_splits(q, batch, of_keys, width, heads // of_keys, max_seqlen_k)
    return _forward_done(out, logsumexp, returned, accumulators)


def bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    gen: Any,
    rng_state: Optional[Tensor],
) -> list[Tensor]:
    """The gradients, which are written where they are given, and the sums of gradients by outputs.

    Raises:
        RuntimeError: for a call that the kernels do not support.
    """
    note_use()
    _check(q, k, v)
    batch, length, heads, width = q.shape
    gradients = _gradients((q, k, v), (dq, dk, dv))
    rounded = rounded_rows(length)
    sums = floats(q, batch, heads, rounded)
    accumulated = _accumulated(q, batch * heads, (batch, rounded, heads, _rounded(width)), deterministic)
    return _backward_done(gradients, sums, accumulated, k, heads)


def varlen_bwd(
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
    alibi_slopes: Optional[Tensor],
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    gen: Any,
    rng_state: Optional[Tensor],
) -> list[Tensor]:
    """As :func:`bwd`.

    Raises:
        RuntimeError: for a call that the kernels do not support.
    """
    note_use()
    _check(q, k, v, cu_seqlens_q, cu_seqlens_k)
    _, heads, width = q.shape
    batch = cu_seqlens_q.numel() - 1
    gradients = _gradients((q, k, v), (dq, dk, dv))
    rows = rows_of_sequences(q, cu_seqlens_q)
    sums = floats(q, heads, rows)
    accumulated = _accumulated(q, batch * heads, (rows, heads, _rounded(width)), deterministic)
    return _backward_done(gradients, sums, accumulated, k, heads)


def _forward_done(out: Tensor, logsumexp: Tensor, returned: Tensor, accumulators: tuple[Tensor, ...]) -> list[Tensor]:
    """Make the state of dropout, and start the kernels."""
    state = random_state(out)
    start([out])
    if accumulators:
        start(accumulators)
    return [out, logsumexp, returned, state]


def _backward_done(gradients: list[Tensor], sums: Tensor, accumulated: Tensor, k: Tensor, heads: int) -> list[Tensor]:
    """Make the gradients of each head of queries, where these are more, and start the kernels."""
    expanded = _expanded(k, heads)
    start([sums])
    start([accumulated])
    start([gradients[0]])
    _sum_groups(gradients, expanded, heads)
    return [*gradients, sums]


def _check(q: Tensor, k: Tensor, v: Tensor, *first_tokens: Tensor) -> None:
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        raise RuntimeError('FlashAttention only supports Ampere GPUs or newer.')
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(f'flash-attn takes float16 and bfloat16, not {q.dtype}')
    if not q.dtype == k.dtype == v.dtype:
        raise RuntimeError(f'flash-attn takes q, k and v of one data type, not {q.dtype}, {k.dtype} and {v.dtype}')
    if any(not tensor.is_cuda for tensor in (q, k, v, *first_tokens)):
        raise RuntimeError('flash-attn takes tensors on a GPU')
    if any(tensor.dtype != torch.int32 for tensor in first_tokens):
        raise RuntimeError('flash-attn takes cu_seqlens_q and cu_seqlens_k in int32')
    if q.shape[-1] > 256 or q.shape[-1] % 8:
        raise RuntimeError(f'flash-attn takes heads of at most 256 elements, in steps of 8, not {q.shape[-1]}')
    if q.shape[-2] % k.shape[-2]:
        raise RuntimeError(
            f'flash-attn takes {q.shape[-2]} heads of queries for as many or a part of them, not {k.shape[-2]}'
        )
    if q.shape[-1] != k.shape[-1] or k.shape != v.shape:
        raise RuntimeError(
            f'flash-attn takes no shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)} together'
        )


def _up(number: int, step: int) -> int:
    return (number + step - 1) // step * step


def _rounded(width: int) -> int:
    """Of a head, as the kernels compute it."""
    return _up(width, 32) if width <= 192 else 256


def floats(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def random_state(like: Tensor) -> Tensor:
    return torch.empty(2, dtype=torch.int64, device=like.device)


def no_scores(q: Tensor) -> Tensor:
    return torch.empty(0, dtype=q.dtype, device=q.device)


def scores(q: Tensor, batch: int, heads: int, queries: int, keys: int, dropout: float) -> Tensor:
    """Of which the sign says what dropout left out.

    Raises:
        RuntimeError: without dropout.
    """
    if not dropout:
        raise RuntimeError('flash-attn returns the scores only with dropout')
    shape = (batch, heads, _up(queries, _ROWS), _up(keys, _ROWS))
    return torch.empty(shape, dtype=q.dtype, device=q.device)


def rounded_rows(length: int) -> int:
    """Of the queries of one length, whole blocks."""
    return _up(length, _ROWS)


def rows_of_sequences(q: Tensor, cu_seqlens: Tensor) -> int:
    """Of several lengths: each sequence may be written to as if it were a block longer."""
    return q.shape[0] + _ROWS * (cu_seqlens.numel() - 1)


def _of_splits(q: Tensor, batch: int, heads: int, width: int, queries: int, keys: int) -> tuple[Tensor, ...]:
    """What the parts of the keys accumulate, where the keys are split because too few blocks would be busy."""
    blocks = math.ceil(keys / (256 if width <= 64 else 128 if width <= 128 else 64))
    busy = batch * heads * math.ceil(queries / 64)
    splits = splits_of(busy, 2 * torch.cuda.get_device_properties(q.device).multi_processor_count, blocks)
    if splits == 1:
        return ()
    return floats(q, splits, batch, heads, queries), floats(q, splits, batch, heads, queries, _rounded(width))


def splits_of(busy: int, places: int, blocks: int) -> int:
    """In how many parts the keys are split: the fewest with 85 % of the best share of places that are busy.

    Args:
        busy: blocks of queries, over all heads and sequences.
        places: blocks that run at once.
        blocks: of keys.

    >>> splits_of(busy=200, places=216, blocks=16), splits_of(busy=12, places=216, blocks=16)
    (1, 16)
    """
    if busy >= 0.8 * places:
        return 1
    shares = {}
    for splits in range(1, min(_MOST_SPLITS, places, blocks) + 1):
        if splits == 1 or math.ceil(blocks / splits) != math.ceil(blocks / (splits - 1)):
            waves = busy * splits / places
            shares[splits] = waves / math.ceil(waves)
    return next((splits for splits, share in shares.items() if share >= 0.85 * max(shares.values())), 1)


def _gradients(of: tuple[Tensor, ...], given: tuple[Optional[Tensor], ...]) -> list[Tensor]:
    return [torch.empty_like(tensor) if into is None else into for tensor, into in zip(of, given, strict=True)]


def _accumulated(q: Tensor, heads: int, shape: tuple[int, ...], deterministic: bool) -> Tensor:
    """The queries' gradient in float32; once for each split of the keys if the order of sums is to be the same."""
    if not deterministic:
        return floats(q, *shape)
    splits = math.ceil(torch.cuda.get_device_properties(q.device).multi_processor_count / heads)
    return torch.zeros(splits, *shape, dtype=torch.float32, device=q.device)


def _expanded(k: Tensor, heads: int) -> tuple[Tensor, ...]:
    """The gradients of keys and values for each head of queries, where these are more."""
    if k.shape[-2] == heads:
        return ()
    shape = (*k.shape[:-2], heads, k.shape[-1])
    return tuple(torch.empty(shape, dtype=k.dtype, device=k.device) for _ in range(2))


def _sum_groups(gradients: list[Tensor], expanded: tuple[Tensor, ...], heads: int) -> None:
    for into, each in zip(gradients[1:], expanded):
        groups = each.view(*each.shape[:-2], into.shape[-2], heads // into.shape[-2], each.shape[-1])
        torch.sum(groups, dim=-2, out=into)
