"""The floating-point operations of one call of a torch operator: torch's own formulas, and ours where it has none.

A multiplication with its addition counts as two. Only products of matrices, convolutions and attention count, as is
the custom; causal attention counts in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_any, tree_map
from torch.utils.flop_counter import conv_flop_count, flop_registry

aten = torch.ops.aten


@dataclass(frozen=True)
class Count:
    """Of one call: what the model needs, and what is computed a second time to save memory."""

    flops: int
    recomputed: int = 0


def count(operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> Optional[Count]:
    """None where there is no formula, or where it does not fit the call."""
    try:
        packet = getattr(operation, '_overloadpacket', None)
        if packet in _OURS:
            return _OURS[packet](*arguments)
        if packet in flop_registry:
            flops = flop_registry[packet](*arguments, **keywords, out_val=result)
            return _share_recomputed(flops, *arguments) if packet in _RAGGED_BACKWARD else Count(flops)
        return _count_parts(operation, arguments, keywords)
    except Exception:  # torch's formulas assert, for one; a call that is not counted is named as such
        return None


def name_of(operation: Any) -> str:
    """``'aten.mm'``."""
    return str(getattr(operation, '_overloadpacket', operation))


def computes(operation: Any) -> bool:
    """Whether it does more than to look at its argument in another way, or to mark a place in a trace."""
    return not getattr(operation, 'is_view', False) and getattr(operation, 'namespace', '') != 'profiler'


# -- ours -------------------------------------------------------------------------------------------------------------


def _product(left: torch.Tensor, right: torch.Tensor) -> Count:
    """(…, m, k) by (k, …n)."""
    return Count(2 * left.numel() * prod(right.shape[1:]))


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Count:
    """Scores, and values weighted by them. Keys and values may have fewer heads than queries (grouped queries)."""
    del rest  # unused
    return Count(2 * _scores(query, key) * (query.shape[-1] + value.shape[-1]))


def _attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any
) -> Count:
    """Two products for each of the forward's; the scores, which were not kept, are computed again."""
    return Count(2 * _attention(query, key, value).flops, recomputed=2 * _scores(query, key) * query.shape[-1])


def _scores(query: torch.Tensor, key: torch.Tensor) -> int:
    return prod(query.shape[:-1]) * key.shape[-2]


def _share_recomputed(flops: int, gradient: Any, query: torch.Tensor, key: Any, value: torch.Tensor, *_: Any) -> Count:
    """Of torch's count for an attention's backward: three products of the query's width, two of the value's; one of
    the former for the scores."""
    of_query, of_value = query.shape[-1], value.shape[-1]
    recomputed = flops * of_query // (3 * of_query + 2 * of_value)
    return Count(flops - recomputed, recomputed)


def _convolution_backward(*arguments: Any) -> Count:
    """As the forward, once for the input's gradient and once for the weight's; in groups too, which torch miscounts."""
    gradient, inputs, weight = arguments[:3]
    transposed, mask = arguments[7], arguments[10]
    forward = conv_flop_count(inputs.shape, weight.shape, gradient.shape, transposed=transposed)
    return Count(forward * (bool(mask[0]) + bool(mask[1])))


def _rnn_layer(inputs: torch.Tensor, weight: torch.Tensor, recurrent: torch.Tensor, *rest: Any) -> Count:
    """Both weights, for each element of each sequence: inputs (length, batch, width)."""
    del rest  # unused
    return Count(2 * prod(inputs.shape[:-1]) * (weight.numel() + recurrent.numel()))


def _rnn_layer_backward(*arguments: Any) -> Count:
    return Count(2 * _rnn_layer(*arguments).flops)


_ATTENTION = (
    *('_scaled_dot_product_flash_attention_for_cpu', '_scaled_dot_product_fused_attention_overrideable'),
    # These torch has too, but for as many heads of keys as of queries only.
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
    'mkldnn_rnn_layer': _rnn_layer,
    'mkldnn_rnn_layer_backward': _rnn_layer_backward,
}
_OURS = {getattr(aten, name): formula for name, formula in _BY_NAME.items() if hasattr(aten, name)}
_RAGGED_BACKWARD = {aten._flash_attention_backward, aten._efficient_attention_backward}


# -- operators made of others -----------------------------------------------------------------------------------------


class _Parts(TorchDispatchMode):
    """Adds up what operators are made of, down to those with a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.recomputed = 0
        self.counted = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        packet = func._overloadpacket
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
    """In inference mode torch hands over whole what it otherwise takes apart first (linear, matmul, einsum, …).

    It is taken apart here, on tensors without data.
    """
    if not isinstance(operation, torch._ops.OpOverload) or not _is_made_of_others(operation):
        return None
    if not tree_any(lambda value: isinstance(value, torch.Tensor), (arguments, keywords)):
        return None
    arguments, keywords = tree_map(_without_data, (arguments, keywords))
    with _Parts() as parts:
        operation.decompose(*arguments, **keywords)
    return Count(parts.flops, parts.recomputed) if parts.counted else None


def _is_made_of_others(operation: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), 'CompositeImplicitAutograd')


def _without_data(value: Any) -> Any:
    return value.to('meta') if isinstance(value, torch.Tensor) else value
