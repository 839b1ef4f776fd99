"""The floating-point operations of one call of a torch operator: by torch's formula, or by ours where torch has none.

A multiplication with its addition counts as two, of complex numbers as eight, or six in a convolution, which torch
computes as three real ones. As usual, only matrix products, convolutions and attention count, and causal attention
counts in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Optional

import torch

from composer_memprof.messages import log_error
from composer_memprof.recorders.torch_private.dispatch_modes import TorchDispatchMode
from composer_memprof.recorders.torch_private.flop_formulas import (
    conv_flop_count,
    flop_registry,
    has_kernel_for,
    tree_any,
    tree_map,
)
from composer_memprof.recorders.torch_private.operators import OVERLOAD_PACKET, OpOverload

aten = torch.ops.aten


@dataclass(frozen=True)
class Count:
    """FLOPs of one call: those of the model, and those computed a second time to save memory."""

    flops: int
    recomputed: int = 0

    def times(self, factor: int) -> Count:
        return self if factor == 1 else Count(factor * self.flops, factor * self.recomputed)


def count(operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> Optional[Count]:
    """The FLOPs of a call; None where there is no formula, or where it does not fit the call."""
    try:
        packet = getattr(operation, OVERLOAD_PACKET, None)
        if packet in _OURS:
            return _OURS[packet](*arguments).times(_real_products(arguments))
        if str(packet) in _OF_FLASH_ATTN:  # registered by that package, if it is imported at all
            return _OF_FLASH_ATTN[str(packet)](*arguments)
        if packet in flop_registry:
            flops = flop_registry[packet](*arguments, **keywords, out_val=result)
            found = _share_recomputed(flops, *arguments) if packet in _RAGGED_BACKWARD else Count(flops)
            return found.times(_real_products(arguments))
        return _count_parts(operation, arguments, keywords)
    except Exception:  # torch's formulas use assertions, for example. The call is listed as untracked.
        log_error(f'the FLOPs of {operation} could not be counted')
        return None


def name_of(operation: Any) -> str:
    """``'aten.mm'``."""
    return str(getattr(operation, OVERLOAD_PACKET, operation))


def computes(operation: Any) -> bool:
    """False for an operator that returns a view of its argument, or marks a place in a trace."""
    return not getattr(operation, 'is_view', False) and getattr(operation, 'namespace', '') != 'profiler'


def _real_products(arguments: tuple[Any, ...]) -> int:
    """Products of real numbers in one of the operator's: a complex one and its sum are four of each, 8 FLOPs."""
    return 4 if any(isinstance(value, torch.Tensor) and value.is_complex() for value in arguments) else 1


# -- ours -------------------------------------------------------------------------------------------------------------


def _product(left: torch.Tensor, right: torch.Tensor) -> Count:
    """(…, m, k) by (k, …n)."""
    return Count(2 * left.numel() * prod(right.shape[1:]))


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Count:
    """Two products: the scores, and the values weighted by them. Keys and values may have fewer heads than queries."""
    del rest  # unused
    return Count(2 * _scores(query, key) * (query.shape[-1] + value.shape[-1]))


def _attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any
) -> Count:
    """Two products for each one of the forward. The scores were not kept, and are computed again."""
    return Count(2 * _attention(query, key, value).flops, recomputed=2 * _scores(query, key) * query.shape[-1])


def _scores(query: torch.Tensor, key: torch.Tensor) -> int:
    return prod(query.shape[:-1]) * key.shape[-2]


def _flash_attn(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Count:
    """As :func:`_attention`, of the package flash-attn: (batch, length, heads, width)."""
    del rest  # unused
    return _attention(*(each.transpose(1, 2) for each in (query, key, value)))


def _flash_attn_varlen(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Count:
    """Of (tokens, heads, width). Only the device knows the lengths, which count as if they were the same."""
    sequences = rest[0].numel() - 1
    keys = key.shape[0] / sequences if key.dim() == 3 else rest[3]
    return Count(round(2 * query.shape[0] * query.shape[1] * keys * (query.shape[-1] + value.shape[-1])))


def _flash_attn_backward(gradient: torch.Tensor, query: torch.Tensor, *rest: Any) -> Count:
    forward = _flash_attn(query, *rest).flops
    return _backward_of(forward, query, rest[1])


def _flash_attn_varlen_backward(gradient: torch.Tensor, query: torch.Tensor, *rest: Any) -> Count:
    key, value, lengths = rest[0], rest[1], rest[7:]
    return _backward_of(_flash_attn_varlen(query, key, value, *lengths).flops, query, value)


def _flash_attn_3(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Count:
    """Of flash-attn 3, which has one operator for both. ``cu_seqlens_q`` says which it is."""
    return _of_either(query, key, value, rest[4] if len(rest) > 4 else None)


def _flash_attn_3_backward(gradient: torch.Tensor, query: torch.Tensor, *rest: Any) -> Count:
    key, value, *others = rest
    forward = _of_either(query, key, value, others[2] if len(others) > 2 else None)
    return _backward_of(forward.flops, query, value)


def _of_either(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: Optional[torch.Tensor]) -> Count:
    return _flash_attn(query, key, value) if first is None else _flash_attn_varlen(query, key, value, first)


def _backward_of(forward: int, query: torch.Tensor, value: torch.Tensor) -> Count:
    """As :func:`_attention_backward`."""
    return Count(2 * forward, recomputed=forward * query.shape[-1] // (query.shape[-1] + value.shape[-1]))


def _share_recomputed(flops: int, gradient: Any, query: torch.Tensor, key: Any, value: torch.Tensor, *_: Any) -> Count:
    """Split torch's count for an attention's backward, where one product recomputes the scores.

    torch counts three products of the query's width, the scores' among them, and two of the value's width.
    """
    query_width, value_width = query.shape[-1], value.shape[-1]
    recomputed = flops * query_width // (3 * query_width + 2 * value_width)
    return Count(flops - recomputed, recomputed)


def _convolution_backward(*arguments: Any) -> Count:
    """The forward's FLOPs for the input's gradient, and again for the weight's. torch miscounts grouped convolutions."""
    gradient, inputs, weight = arguments[:3]
    transposed, mask = arguments[7], arguments[10]
    forward = conv_flop_count(inputs.shape, weight.shape, gradient.shape, transposed=transposed)
    return Count(forward * (bool(mask[0]) + bool(mask[1])))


def _rnn_layer(inputs: torch.Tensor, weight: torch.Tensor, recurrent: torch.Tensor, *rest: Any) -> Count:
    """Both weights are applied to each element of each sequence; inputs are (length, batch, width)."""
    del rest  # unused
    return Count(2 * prod(inputs.shape[:-1]) * (weight.numel() + recurrent.numel()))


def _rnn_layer_backward(*arguments: Any) -> Count:
    return Count(2 * _rnn_layer(*arguments).flops)


def _multi_head_attention(*arguments: Any) -> Count:
    """The fused kernel of ``nn.MultiheadAttention``: projections in, scores, weighted values, projection out."""
    query, key, value, width, _, packed, _, projection = arguments[:8]
    lengths = [_lengths(each) for each in (query, key, value)]
    tokens = [sum(each) for each in lengths]
    projections = sum(tokens) * packed.numel() // 3 + tokens[0] * projection.numel()
    scores = sum(of_query * of_key for of_query, of_key in zip(lengths[0], lengths[1])) * width
    return Count(2 * (projections + 2 * scores))


def _encoder_layer(*arguments: Any) -> Count:
    """The fused kernel of ``nn.TransformerEncoderLayer``: self-attention, and the two feed-forward products."""
    source, width, heads = arguments[:3]
    attention = _multi_head_attention(source, source, source, width, heads, *arguments[3:7])
    return Count(attention.flops + 2 * sum(_lengths(source)) * (arguments[14].numel() + arguments[16].numel()))


def _lengths(sequences: torch.Tensor) -> list[int]:
    """Tokens of each sequence; those of a nested tensor differ."""
    if sequences.is_nested:
        return [each.shape[0] for each in sequences.unbind()]
    return [sequences.shape[1]] * sequences.shape[0]


_ATTENTION = (
    *('_scaled_dot_product_flash_attention_for_cpu', '_scaled_dot_product_fused_attention_overrideable'),
    # torch has formulas for these, but only for equally many heads of keys and queries.
    *('_scaled_dot_product_flash_attention', '_scaled_dot_product_efficient_attention'),
    '_scaled_dot_product_cudnn_attention',
)
_BY_NAME: dict[str, Callable[..., Count]] = {
    **dict.fromkeys(_ATTENTION, _attention),
    **{f'{name}_backward': _attention_backward for name in _ATTENTION},
    'mv': _product,
    'dot': _product,
    'vdot': _product,
    'addmv': lambda added, left, right, *_: _product(left, right),
    '_int_mm': _product,
    '_addmm_activation': lambda added, left, right, *_: _product(left, right),
    'addbmm': lambda added, left, right, *_: Count(2 * left.numel() * right.shape[-1]),
    'convolution_backward': _convolution_backward,
    '_native_multi_head_attention': _multi_head_attention,
    '_transformer_encoder_layer_fwd': _encoder_layer,
    'mkldnn_rnn_layer': _rnn_layer,
    'mkldnn_rnn_layer_backward': _rnn_layer_backward,
}
_OF_FLASH_ATTN: dict[str, Callable[..., Count]] = {
    'flash_attn._flash_attn_forward': _flash_attn,
    'flash_attn._flash_attn_backward': _flash_attn_backward,
    'flash_attn._flash_attn_varlen_forward': _flash_attn_varlen,
    'flash_attn._flash_attn_varlen_backward': _flash_attn_varlen_backward,
    'flash_attn_3._flash_attn_forward': _flash_attn_3,
    'flash_attn_3._flash_attn_backward': _flash_attn_3_backward,
}
_OURS = {getattr(aten, name): formula for name, formula in _BY_NAME.items() if hasattr(aten, name)}
_RAGGED_BACKWARD = {
    getattr(aten, name)
    for name in ('_flash_attention_backward', '_efficient_attention_backward')
    if hasattr(aten, name)
}


# -- operators composed of others -------------------------------------------------------------------------------------


class _PartsCounter(TorchDispatchMode):
    """Adds up the operators that an operator is composed of, down to those with a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.recomputed = 0
        self.counted = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        packet = getattr(func, OVERLOAD_PACKET)
        if packet not in _OURS and packet not in flop_registry:
            with self:
                result = func.decompose(*args, **keywords)
            return func(*args, **keywords) if result is NotImplemented else result
        result = func(*args, **keywords)
        found = count(func, args, keywords, result)
        if found is not None:
            self.counted = True
            self.flops += found.flops
            self.recomputed += found.recomputed
        return result


def _count_parts(operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Optional[Count]:
    """Count an operator that torch decomposes before dispatch, except in inference mode (linear, matmul, einsum, …).

    It is decomposed here, on tensors without data.
    """
    if not isinstance(operation, OpOverload) or not _is_composite(operation):
        return None
    if not tree_any(lambda value: isinstance(value, torch.Tensor), (arguments, keywords)):
        return None
    arguments, keywords = tree_map(_without_data, (arguments, keywords))
    with _PartsCounter() as parts:
        operation.decompose(*arguments, **keywords)
    return Count(parts.flops, parts.recomputed) if parts.counted else None


def _is_composite(operation: Any) -> bool:
    return has_kernel_for(operation.name(), 'CompositeImplicitAutograd')


def _without_data(value: Any) -> Any:
    return value.to('meta') if isinstance(value, torch.Tensor) else value
