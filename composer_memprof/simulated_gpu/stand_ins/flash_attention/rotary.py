"""Rotary positions: queries and keys are rotated by tables of cosines and sines (length, half of the rotated width)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

import torch
from torch import Tensor

from composer_memprof.simulated_gpu.stand_ins.flash_attention import note_use
from composer_memprof.simulated_gpu.stand_ins.launching import launch

_Offsets = Union[int, Tensor]


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: _Offsets = 0,
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """Rotate (batch, length, heads, width), or (tokens, heads, width) with ``cu_seqlens``; what is not rotated is copied."""
    note_use()
    rotated, width = 2 * cos.shape[-1], x.shape[-1]
    if rotated > width:
        raise AssertionError(f'the rotated width is {rotated}, and that of a head only {width}')
    if not x.dtype == cos.dtype == sin.dtype:
        raise AssertionError(f'flash-attn rotates {x.dtype} by tables of the same data type, not {cos.dtype}')
    cos, sin = cos.contiguous(), sin.contiguous()
    offsets = [seqlen_offsets.contiguous()] if isinstance(seqlen_offsets, Tensor) else []
    output = x if inplace else torch.empty_like(x)
    if rotated < width and not inplace:
        output[..., rotated:].copy_(x[..., rotated:])
    launch([x[..., :rotated], cos, sin, *offsets], [output[..., :rotated]])
    return output


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        interleaved: bool,
        inplace: bool,
        seqlen_offsets: _Offsets,
        cu_seqlens: Optional[Tensor],
        max_seqlen: Optional[int],
    ) -> Tensor:
        output = apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)
        _save(ctx, (cos, sin, cu_seqlens), seqlen_offsets)
        ctx.about = (max_seqlen, interleaved, inplace)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (cos, sin, cu_seqlens), offsets = _saved(ctx, 3)
        longest, interleaved, inplace = ctx.about
        if not interleaved and not inplace:
            gradient = gradient.clone()
        rotated = apply_rotary(gradient, cos, sin, offsets, cu_seqlens, longest, interleaved, inplace, True)
        return (rotated, *(None,) * 7)


class _RotaryOfPacked(torch.autograd.Function):
    """In place, of queries and keys that are packed: (batch, length, 3, heads, width), or with fewer heads of keys and values."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        cos_k: Optional[Tensor],
        sin_k: Optional[Tensor],
        interleaved: bool,
        seqlen_offsets: _Offsets,
        num_heads_q: Optional[int],
    ) -> Tensor:
        ctx.of_queries = num_heads_q
        ctx.interleaved = interleaved
        rotated, tables = _parts(qkv, (cos, sin, cos_k, sin_k), num_heads_q)
        for part, table in zip(rotated, tables, strict=True):
            apply_rotary(part, *table, seqlen_offsets, interleaved=interleaved, inplace=True)
        if len(rotated) == 2:
            cos_k, sin_k = tables[1]
        _save(ctx, (cos, sin, cos_k, sin_k), seqlen_offsets)
        return qkv

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        given, offsets = _saved(ctx, 4)
        for part, table in zip(*_parts(gradient, given, ctx.of_queries), strict=True):
            apply_rotary(part, *table, offsets, interleaved=ctx.interleaved, inplace=True, conjugate=True)
        return (gradient, *(None,) * 7)


def _parts(
    packed: Tensor, given: Sequence[Optional[Tensor]], of_queries: Optional[int]
) -> tuple[list[Tensor], list[tuple[Any, Any]]]:
    """What is rotated, in one part where one kernel can do it, and the tables of each part."""
    cos, sin, cos_k, sin_k = given
    if packed.dim() == 4:
        if of_queries is None:
            raise AssertionError('num_heads_q must be given for packed heads of different numbers')
        of_keys = (packed.shape[2] - of_queries) // 2
        queries, keys = packed[:, :, :of_queries], packed[:, :, of_queries : of_queries + of_keys]
        both = packed[:, :, : of_queries + of_keys]
    else:
        queries, keys = packed[:, :, 0], packed[:, :, 1]
        both = packed[:, :, :2].flatten(2, 3) if packed.is_contiguous() else packed
    if cos_k is None and sin_k is None and packed.is_contiguous():
        return [both], [(cos, sin)]
    of_k = (cos if cos_k is None else cos_k, sin if sin_k is None else sin_k)
    return [queries, keys], [(cos, sin), of_k]


class _RotaryOfKeys(torch.autograd.Function):
    """In place, of keys that are packed with values: (batch, length, 2, heads, width)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, seqlen_offsets: _Offsets
    ) -> Tensor:
        apply_rotary(kv[:, :, 0], cos, sin, seqlen_offsets, interleaved=interleaved, inplace=True)
        _save(ctx, (cos, sin), seqlen_offsets)
        ctx.interleaved = interleaved
        return kv

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (cos, sin), offsets = _saved(ctx, 2)
        apply_rotary(gradient[:, :, 0], cos, sin, offsets, interleaved=ctx.interleaved, inplace=True, conjugate=True)
        return (gradient, *(None,) * 4)


def _save(ctx: Any, tensors: tuple[Optional[Tensor], ...], offsets: _Offsets) -> None:
    if isinstance(offsets, Tensor):
        ctx.save_for_backward(*tensors, offsets)
    else:
        ctx.save_for_backward(*tensors)
        ctx.offset = offsets


def _saved(ctx: Any, count: int) -> tuple[Sequence[Any], _Offsets]:
    saved = ctx.saved_tensors
    return saved[:count], saved[count] if len(saved) > count else ctx.offset


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: _Offsets = 0,
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
) -> Tensor:
    """Rotate the first elements of each head, as many as the tables have twice."""
    return _Rotary.apply(x, cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen)


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Optional[Tensor] = None,
    sin_k: Optional[Tensor] = None,
    interleaved: bool = False,
    seqlen_offsets: _Offsets = 0,
    num_heads_q: Optional[int] = None,
) -> Tensor:
    """Rotate packed queries and keys in place."""
    return _RotaryOfPacked.apply(qkv, cos, sin, cos_k, sin_k, interleaved, seqlen_offsets, num_heads_q)


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: _Offsets = 0
) -> Tensor:
    """Rotate keys in place that are packed with values."""
    return _RotaryOfKeys.apply(kv, cos, sin, interleaved, seqlen_offsets)


class RotaryEmbedding(torch.nn.Module):
    """Rotates with tables that it makes and keeps, for the longest sequence so far.

    Args:
        dim: the rotated width.
        scale_base: of positions that decay (XPos); keys then have tables of their own.
        pos_idx_in_fp32: make tables in float32 whatever the module's data type is.
    """

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: Optional[float] = None,
        pos_idx_in_fp32: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.base = float(base)
        self.pos_idx_in_fp32 = pos_idx_in_fp32
        self.interleaved = interleaved
        self.scale_base = scale_base
        self.register_buffer('inv_freq', self._frequencies(device), persistent=False)
        scale = None
        if scale_base is not None:
            scale = (torch.arange(0, dim, 2, device=device, dtype=torch.float32) + 0.4 * dim) / (1.4 * dim)
        self.register_buffer('scale', scale, persistent=False)
        self._length = 0
        self._tables: Optional[tuple[Tensor, Tensor]] = None
        self._tables_of_keys: Optional[tuple[Tensor, Tensor]] = None

    def _frequencies(self, device: Any) -> Tensor:
        return 1.0 / self.base ** (torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim)

    def _make_tables(self, length: int, like: Tensor) -> None:
        now = self._tables[0] if self._tables is not None else None
        if (
            now is not None
            and length <= self._length
            and (now.device, now.dtype) == (like.device, like.dtype)
            and not (self.training and now.is_inference())
        ):
            return
        self._length = length
        frequencies: Any = self.inv_freq
        if self.pos_idx_in_fp32 and frequencies.dtype != torch.float32:
            frequencies = self._frequencies(like.device)
        places = torch.arange(length, device=like.device, dtype=frequencies.dtype)
        angles = torch.outer(places, frequencies)
        if self.scale is None:
            self._tables = torch.cos(angles).to(like.dtype), torch.sin(angles).to(like.dtype)
            return
        scale: Any = self.scale
        power = (torch.arange(length, dtype=scale.dtype, device=scale.device) - length // 2) / (self.scale_base or 1)
        scale = scale.to(power.device) ** power[:, None]
        self._tables = (torch.cos(angles) * scale).to(like.dtype), (torch.sin(angles) * scale).to(like.dtype)
        self._tables_of_keys = (torch.cos(angles) / scale).to(like.dtype), (torch.sin(angles) / scale).to(like.dtype)

    def forward(
        self,
        qkv: Tensor,
        kv: Optional[Tensor] = None,
        seqlen_offset: _Offsets = 0,
        max_seqlen: Optional[int] = None,
        num_heads_q: Optional[int] = None,
    ) -> Any:
        """Rotate in place: packed queries and keys, or queries and packed keys."""
        if max_seqlen is not None:
            self._make_tables(max_seqlen, qkv)
        elif isinstance(seqlen_offset, int):
            self._make_tables(qkv.shape[1] + seqlen_offset, qkv)
        if self._tables is None:
            raise AssertionError('max_seqlen must be given where seqlen_offset is a tensor')
        cos, sin = self._tables
        cos_k, sin_k = self._tables_of_keys or (None, None)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q)
        rotated = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        of_keys = self._tables_of_keys or self._tables
        return rotated, apply_rotary_emb_kv_(kv, *of_keys, self.interleaved, seqlen_offset)
