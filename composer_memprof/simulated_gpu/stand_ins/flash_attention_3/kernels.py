"""The kernels of flash-attn 3: what they allocate, and which calls they refuse.

Tensors of a batch are (batch, length, heads, width); those of sequences of several lengths are (tokens, heads, width),
with the sequences' first tokens in ``cu_seqlens``, int32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from composer_memprof.simulated_gpu.stand_ins.flash_attention_3 import note_use
from composer_memprof.simulated_gpu.stand_ins.launching import start

#: Widths of heads that kernels are built for; others are computed as the next one.
_WIDTHS = (64, 96, 128, 192, 256)
#: Columns of a block of keys on Hopper, by the width.
_COLUMNS = {64: 128, 96: 128, 128: 128, 192: 96, 256: 80}
_COLUMNS_OF_AMPERE = {64: 128, 96: 128, 128: 128, 192: 80, 256: 64}
_COLUMNS_OF_ADA = {64: 128, 96: 128, 128: 96, 192: 64, 256: 64}
_FLOAT8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees.

    Args:
        left: keys before it, -1 for all.
        right: keys after it, -1 for all.
        chunk: sequences are split into chunks of this length, 0 for none.
    """

    causal: bool
    left: int = -1
    right: int = -1
    chunk: int = 0

    def of(self, queries: int, keys: int) -> Mask:
        """As the kernels take it: windows as long as the sequence are none."""
        left = -1 if self.left >= keys - 1 else self.left
        right = 0 if self.causal else -1 if self.right >= queries - 1 else self.right
        return Mask(left < 0 and right == 0 and not self.chunk, left, right, self.chunk)

    @property
    def is_local(self) -> bool:
        """Of :meth:`of`."""
        return not self.causal and (self.left >= 0 or self.right >= 0 or self.chunk > 0)


@dataclass(frozen=True)
class Lengths:
    """Of the sequences. Those of several lengths have ``cu_seqlens``, and the longest lengths."""

    cu_queries: Optional[Tensor] = None
    cu_keys: Optional[Tensor] = None
    used_queries: Optional[Tensor] = None
    used_keys: Optional[Tensor] = None
    longest_queries: Optional[int] = None
    longest_keys: Optional[int] = None

    @property
    def vary(self) -> bool:
        return any(each is not None for each in self._tensors())

    def batch(self, q: Tensor) -> int:
        return q.shape[0] if self.cu_queries is None else self.cu_queries.shape[0] - 1

    def queries(self, q: Tensor) -> int:
        """Of the longest sequence."""
        return q.shape[1] if self.cu_queries is None else _given(self.longest_queries, 'max_seqlen_q')

    def keys(self, k: Tensor) -> int:
        return k.shape[1] if self.cu_keys is None else _given(self.longest_keys, 'max_seqlen_k')

    def check(self) -> None:
        """Raises:
        RuntimeError: unless all are int32, on a GPU.
        """
        if any(each is not None and (each.dtype != torch.int32 or not each.is_cuda) for each in self._tensors()):
            raise RuntimeError('flash-attn 3 takes lengths in int32, on a GPU')

    def _tensors(self) -> tuple[Optional[Tensor], ...]:
        return self.cu_queries, self.cu_keys, self.used_queries, self.used_keys


def fwd(
    q: Tensor, k: Tensor, v: Tensor, out: Optional[Tensor], lengths: Lengths, mask: Mask, num_splits: int
) -> tuple[Tensor, Tensor, Optional[tuple[Tensor, Tensor]]]:
    """The output, the scores' logsumexp, and both of each split of the keys, if they are split.

    Raises:
        RuntimeError: for a call that the kernels do not support.
    """
    note_use()
    _check(q, k, v, (torch.float16, torch.bfloat16, _FLOAT8))
    lengths.check()
    if num_splits < 1:
        raise RuntimeError('the stand-in of flash-attn 3 takes num_splits of at least 1')
    if out is None:
        out = output(q, v)
    logsumexp = floats(q, *per_query(q))
    metadata = _metadata(q, k, lengths, mask.of(lengths.queries(q), lengths.keys(k)), num_splits)
    accumulators = split_outputs(q, v, num_splits)
    start([out])
    if accumulators:
        start(accumulators)
    del metadata  # held up to here
    return out, logsumexp, accumulators


def bwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gradients: tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]],
    lengths: Lengths,
    mask: Mask,
    softcap: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients, which are written where they are given, and the sums of gradients by outputs.

    Raises:
        RuntimeError: for a call that the kernels do not support.
    """
    note_use()
    _check(q, k, v, (torch.float16, torch.bfloat16))
    lengths.check()
    batch, width = lengths.batch(q), _rounded(max(q.shape[-1], v.shape[-1]))
    if deterministic and width == 256:
        raise RuntimeError('flash-attn 3 has no deterministic backward of heads of more than 192 elements')
    dq, dk, dv = (torch.empty_like(of) if into is None else into for of, into in zip((q, k, v), gradients, strict=True))
    rows, columns = rows_of_block(q, k, v, lengths, mask, softcap), _columns_of_block(q, width)
    shape = _in_blocks(q, batch, lengths, rows)
    sums, logsumexp = floats(q, *shape), floats(q, *shape)
    accumulated = [floats(q, *shape, width)]
    if k.shape[-2] != q.shape[-2]:
        of_keys = (*_in_blocks(k, batch, lengths, columns), width)
        accumulated += [torch.zeros(of_keys, dtype=torch.float32, device=q.device) for _ in range(2)]
    locks = [_locks(q, lengths.queries(q), rows, batch, q.shape[-2])]
    if deterministic and len(accumulated) > 1:
        locks += [_locks(q, lengths.keys(k), columns, batch, k.shape[-2]).zero_() for _ in range(2)]
    start([sums])
    start([accumulated[0]])
    start([dq])
    if len(accumulated) > 1:
        start([dk])
        start([dv])
    del locks, logsumexp, accumulated  # held up to here
    return dq, dk, dv, sums


def output(q: Tensor, v: Tensor) -> Tensor:
    dtype = torch.bfloat16 if q.dtype == _FLOAT8 else q.dtype
    return torch.empty((*q.shape[:-1], v.shape[-1]), dtype=dtype, device=q.device)


def per_query(q: Tensor) -> tuple[int, ...]:
    """(batch, heads, length), or (heads, tokens)."""
    return (*q.shape[:-3], q.shape[-2], q.shape[-3])


def split_outputs(q: Tensor, v: Tensor, num_splits: int) -> Optional[tuple[Tensor, Tensor]]:
    """The outputs and the logsumexps of the splits of the keys; None of one split."""
    if num_splits == 1:
        return None
    shape = (num_splits, *per_query(q))
    return floats(q, *shape, v.shape[-1]), floats(q, *shape)


def sums_of_gradients(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, mask: Mask, softcap: float) -> Tensor:
    """By outputs, whole blocks of queries."""
    return floats(q, *_in_blocks(q, lengths.batch(q), lengths, rows_of_block(q, k, v, lengths, mask, softcap)))


def rows_of_block(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, mask: Mask, softcap: float) -> int:
    """Queries of a block in backward."""
    width, generation = _rounded(max(q.shape[-1], v.shape[-1])), _generation(q)
    if generation < 90:
        return (64 if width <= 192 else 32) if generation in (86, 89) else (128 if width <= 64 else 64)
    mask = mask.of(lengths.queries(q), lengths.keys(k))
    if width <= 64:
        return 96 if mask.causal and softcap > 0 else 128
    is_plain = not (mask.causal or mask.is_local or softcap > 0)
    return 80 if width == 128 and is_plain else 64


def floats(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _check(q: Tensor, k: Tensor, v: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        raise RuntimeError('FlashAttention only supports Ampere GPUs or newer.')
    if q.dtype not in dtypes or not q.dtype == k.dtype == v.dtype:
        raise RuntimeError(f'flash-attn 3 takes no q, k and v of {q.dtype}, {k.dtype} and {v.dtype}')
    if any(not tensor.is_cuda for tensor in (q, k, v)):
        raise RuntimeError('flash-attn 3 takes tensors on a GPU')
    if q.shape[-1] > _WIDTHS[-1] or q.shape[-1] % 8 or v.shape[-1] % 8:
        raise RuntimeError(f'flash-attn 3 takes heads of at most 256 elements, in steps of 8, not {q.shape[-1]}')
    if q.shape[-2] % k.shape[-2] or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        raise RuntimeError(
            f'flash-attn 3 takes no shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)} together'
        )


def _metadata(q: Tensor, k: Tensor, lengths: Lengths, mask: Mask, num_splits: int) -> Optional[Tensor]:
    """What the kernel's scheduler counts: of each sequence where lengths vary, and one number of all."""
    is_masked = mask.causal or mask.is_local
    if _generation(q) >= 90:
        counts = lengths.vary or (is_masked and num_splits == 1)
    else:
        counts = num_splits > 1 if lengths.vary else mask.causal
    if not counts and not lengths.vary:
        return None
    of_each = (2 if lengths.vary else 0) + (not mask.is_local) + is_masked
    size = int(counts) + _up(lengths.batch(q), 4) * of_each
    return torch.empty(size, dtype=torch.int32, device=q.device)


def _in_blocks(tensor: Tensor, batch: int, lengths: Lengths, block: int) -> tuple[int, ...]:
    """(batch, heads, length), or (heads, tokens), in whole blocks. A sequence may be written to as if it were one longer."""
    heads = tensor.shape[-2]
    if not lengths.vary:
        return batch, heads, _up(tensor.shape[1], block)
    tokens = tensor.shape[0] if tensor.dim() == 3 else batch * tensor.shape[1]
    return heads, _up(tokens + batch * block, block)


def _locks(q: Tensor, length: int, block: int, batch: int, heads: int) -> Tensor:
    return torch.empty((_up(length, block) // block, batch, heads), dtype=torch.int32, device=q.device)


def _columns_of_block(q: Tensor, width: int) -> int:
    generation = _generation(q)
    if generation >= 90:
        return _COLUMNS[width]
    return (_COLUMNS_OF_ADA if generation in (86, 89) else _COLUMNS_OF_AMPERE)[width]


def _generation(q: Tensor) -> int:
    major, minor = torch.cuda.get_device_capability(q.device)
    return 10 * major + minor


def _rounded(width: int) -> int:
    return next((each for each in _WIDTHS if width <= each), _WIDTHS[-1])


def _up(number: int, step: int) -> int:
    return (number + step - 1) // step * step


def _given(length: Optional[int], name: str) -> int:
    if length is None:
        raise RuntimeError(f'flash-attn 3 takes cu_seqlens only with {name}')
    return length
