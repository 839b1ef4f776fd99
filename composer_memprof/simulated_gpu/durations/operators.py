"""How long an operator of torch takes: products and attention by their sizes, others by the bytes they read and write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from composer_memprof.simulated_gpu.clocks import Kind
from composer_memprof.simulated_gpu.durations.attention import attention_seconds
from composer_memprof.simulated_gpu.durations.memory import Memory
from composer_memprof.simulated_gpu.durations.products import Products
from composer_memprof.simulated_gpu.rates import KERNEL, Rates

Duration = tuple[float, Kind]
_Arguments = Sequence[Any]
_Rule = Callable[['Durations', _Arguments, dict[str, Any], Any], Duration]


#: Bytes at whose multiples rows begin that any kernel for products takes.
_ALIGNED = 16


class Durations:
    """The durations of one device.

    Args:
        compute_capability: its major part.
        l2_cache: bytes.
    """

    def __init__(self, rates: Rates, multiprocessors: int, compute_capability: int, l2_cache: int = 0) -> None:
        self._rates = rates
        self._compute_capability = compute_capability
        self._memory = Memory(rates, multiprocessors, l2_cache)
        self._products = Products(rates, multiprocessors, self._memory)
        self._rules: dict[Any, _Rule] = {}
        self._by_bytes_alone: set[Any] = set()

    def of(self, operation: Any, arguments: _Arguments, keywords: dict[str, Any], result: Any) -> Duration:
        """Seconds of all kernels of a call, and what they are."""
        rule = self._rules.get(operation)
        if rule is None:
            name = operation.name()
            rule = self._rules[operation] = _rule_of(name)
            if rule is _read_and_write and not follows_from_bytes(name):
                self._by_bytes_alone.add(operation)
        return rule(self, arguments, keywords, result)

    def is_lower_bound(self, operation: Any) -> bool:
        """Whether the duration of an operation is only that of its bytes, though its work does not follow from them."""
        return operation in self._by_bytes_alone

    # -- rules --------------------------------------------------------------------------------------------------------

    def product(
        self, batch: int, m: int, n: int, k: int, left: Tensor, right: Tensor, *, compiled: bool = False
    ) -> Duration:
        """Of (m, k) by (k, n). The compiler pads rows that are not aligned, where a copy and a quick product are quicker."""
        tf32, itemsize = torch.backends.cuda.matmul.allow_tf32, left.element_size()
        alignment = math.gcd(_ALIGNED, _row(left) * itemsize, _row(right) * right.element_size(), n * itemsize)
        call = (batch, m, n, k, str(left.dtype)[6:], itemsize, tf32)
        seconds = self._products.seconds(*call, alignment)
        if compiled and alignment < _ALIGNED:
            padded = self._products.seconds(*call, _ALIGNED) + self.moved(2 * _bytes((left, right)))[0]
            seconds = min(seconds, padded)
        return seconds, Kind.PRODUCTS

    def convolution(self, inputs: Tensor, weight: Tensor, output: Tensor, groups: int) -> Duration:
        """As the product that it is: each element of the output of a channel's weights and the inputs below them.

        Tensor cores want the channels last: cuDNN copies tensors of another layout into this one, and its result back.
        """
        places = output.numel() // max(1, output.shape[1])
        channels, depth = weight.shape[0] // groups, weight[0].numel()
        dtype, tf32 = str(inputs.dtype)[6:], torch.backends.cudnn.allow_tf32
        seconds = self._products.seconds(groups, places, channels, depth, dtype, inputs.element_size(), tf32)
        if self._rates.on_tensor_cores(dtype, tf32):
            seconds += sum(self.moved(2 * _bytes(each))[0] for each in (inputs, output) if not _channels_are_last(each))
        return seconds, Kind.PRODUCTS

    def attention(self, kernel: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, backward: bool) -> Duration:
        """Of tensors (batch, heads, length, width)."""
        pairs: float = q.shape[-2] * k.shape[-2]
        if causal:
            pairs = pairs / 2 if q.shape[-2] == k.shape[-2] else pairs
        scores = math.prod(q.shape[:-2]) * pairs
        return self.scores(kernel, scores, q, v, q.shape[-2], backward)

    def scores(self, kernel: str, scores: float, q: Tensor, v: Tensor, queries: float, backward: bool) -> Duration:
        """Of attention with this many scores, over all heads and sequences.

        Args:
            queries: in a sequence.
        """
        peak = self._rates.peak(str(q.dtype)[6:], tf32=True)
        widths = q.shape[-1] + v.shape[-1]
        seconds = attention_seconds(peak, self._compute_capability, kernel, scores, widths, queries, backward)
        return KERNEL + seconds, Kind.ATTENTION

    def moved(self, size: float) -> Duration:
        return KERNEL + self._memory.seconds(size), Kind.OTHER_KERNELS


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _bytes(value: Any) -> int:
    """Of the tensors in a value. What is expanded is read once."""
    size = 0
    for each in _tensors((value,)):
        own = each.numel() * each.element_size()
        if own and 0 in each.stride():
            own = min(own, each.untyped_storage().nbytes())
        size += own
    return size


def _row(matrix: Tensor) -> int:
    """Elements from a row of a matrix to the next one, or from a column to the next one of a transposed one."""
    return max(matrix.stride()[-2:])


def _channels_are_last(tensor: Tensor) -> bool:
    return tensor.dim() < 4 or tensor.stride(1) == 1


# -- the rules, by the operator's name; `d` is the device's durations -------------------------------------------------


def _read_and_write(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    return d.moved(_bytes(a) + (_bytes(tuple(k.values())) if k else 0) + _bytes(result))


def _in_place_lists(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    """The first list is read and written, the others are read."""
    return d.moved(2 * _bytes(a[0]) + _bytes(a[1:]))


def _written_lists(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    """The first list is written."""
    return d.moved(_bytes(a))


def _fused_optimizer(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    """All lists are read, and all but the gradients, the second one, are written."""
    return d.moved(2 * _bytes(a) - _bytes(a[1]))


def _written(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    return d.moved(_bytes(result))


def _copied_onto(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    return d.moved(_bytes(a[1]) + _bytes(a[0]))


def _gathered(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    """As many elements are read as are in the result."""
    return d.moved(2 * _bytes(result))


def _scattered(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    """The result is cleared, and as many of its elements are read and written as are in the gradient."""
    return d.moved(_bytes(result) + 3 * _bytes(a[0]))


def _copied_in(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    """Shards are copied into their place among those of all ranks."""
    return d.moved(2 * _bytes(a[0]))


def _mm(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    # torch.compile's code gives its products the memory of their results
    return d.product(1, a[0].shape[0], a[1].shape[1], a[0].shape[1], a[0], a[1], compiled='out' in k)


def _addmm(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    return _mm(d, a[1:], k, result)


def _bmm(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    return d.product(a[0].shape[0], a[0].shape[1], a[1].shape[2], a[0].shape[2], a[0], a[1], compiled='out' in k)


def _baddbmm(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    return _bmm(d, a[1:], k, result)


def _linear(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    return d.product(1, a[0].numel() // a[0].shape[-1], a[1].shape[0], a[0].shape[-1], a[0], a[1])


def _convolution(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    return d.convolution(a[0], a[1], result, int(a[8]))


def _convolution_backward(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
    seconds, kind = d.convolution(a[1], a[2], a[0], int(a[9]))
    return seconds * (bool(a[10][0]) + bool(a[10][1])), kind


def _attention(kernel: str, causal_at: int, backward: bool) -> _Rule:
    first = 1 if backward else 0

    def rule(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
        causal = a[causal_at] if len(a) > causal_at else k.get('is_causal', False)
        q, key, v = a[first : first + 3]
        return d.attention(kernel, q, key, v, bool(causal), backward)

    return rule


def _flash_attn(backward: bool) -> _Rule:
    """Of the package flash-attn: tensors (batch, length, heads, width)."""
    first, causal_at = (1, 11) if backward else (0, 5)

    def rule(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
        q, key, v = a[first : first + 3]
        batch, queries, heads, _ = q.shape
        pairs = _pairs(queries, key.shape[1], *a[causal_at : causal_at + 3])
        return d.scores('flash-2', batch * heads * pairs, q, v, queries, backward)

    return rule


def _flash_attn_varlen(backward: bool) -> _Rule:
    """Of tensors (tokens, heads, width): the device alone knows the lengths, which are taken to be the same."""
    first, lengths_at, causal_at = (1, 9, 15) if backward else (0, 3, 9)

    def rule(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
        q, key, v = a[first : first + 3]
        batch, heads = a[lengths_at].numel() - 1, q.shape[1]
        queries = q.shape[0] / batch
        keys = key.shape[0] / batch if key.dim() == 3 else a[lengths_at + 3]
        pairs = _pairs(queries, keys, *a[causal_at : causal_at + 3])
        return d.scores('flash-2', batch * heads * pairs, q, v, queries, backward)

    return rule


def _flash_attn_3(backward: bool) -> _Rule:
    """Of flash-attn 3: (batch, length, heads, width), or (tokens, heads, width) with the first tokens of sequences."""
    first, lengths_at, mask_at = (1, 6, 16) if backward else (0, 7, 24)

    def rule(d: Durations, a: _Arguments, k: dict[str, Any], result: Any) -> Duration:
        q, key, v = a[first : first + 3]
        given = a[lengths_at] if len(a) > lengths_at else None
        batch = q.shape[0] if given is None else given.numel() - 1
        queries, keys = (math.prod(each.shape[:-2]) / batch for each in (q, key))
        pairs = _pairs(queries, keys, *a[mask_at : mask_at + 3])
        return d.scores('flash-3', batch * q.shape[-2] * pairs, q, v, queries, backward)

    return rule


def _pairs(queries: float, keys: float, causal: bool = False, left: int = -1, right: int = -1) -> float:
    """Queries and keys of a sequence that are not masked.

    >>> _pairs(4, 4), _pairs(4, 4, True), _pairs(100, 100, True, 9), _pairs(100, 100, False, 9, 10)
    (16, 8.0, 955.0, 2000)

    Args:
        left: of a query, the keys before it that it sees; -1 for all.
        right: the same, after it.
    """
    if causal and left >= 0:
        width = min(keys, left + 1)
        return queries * width - width * (width - 1) / 2
    if causal:
        return queries * keys / 2 if queries == keys else queries * keys
    seen = [keys if side < 0 else side for side in (left, right)]
    return queries * min(keys, sum(seen) + 1)


_SDPA = 'aten::_scaled_dot_product'
_FLASH_ATTN = 'flash_attn::_flash_attn'
_RULES: dict[str, _Rule] = {
    'aten::mm': _mm,
    'aten::addmm': _addmm,
    'aten::_addmm_activation': _addmm,
    'aten::_scaled_mm': _mm,
    'aten::_int_mm': _mm,
    'aten::bmm': _bmm,
    'aten::baddbmm': _baddbmm,
    'aten::linear': _linear,
    'aten::convolution': _convolution,
    'aten::convolution_backward': _convolution_backward,
    f'{_SDPA}_flash_attention': _attention('flash-2', 4, False),
    f'{_SDPA}_efficient_attention': _attention('efficient', 6, False),
    f'{_SDPA}_cudnn_attention': _attention('cudnn', 6, False),
    f'{_SDPA}_flash_attention_backward': _attention('flash-2', 11, True),
    f'{_SDPA}_efficient_attention_backward': _attention('efficient', 11, True),
    f'{_SDPA}_cudnn_attention_backward': _attention('cudnn', 14, True),
    f'{_FLASH_ATTN}_forward': _flash_attn(False),
    f'{_FLASH_ATTN}_backward': _flash_attn(True),
    f'{_FLASH_ATTN}_varlen_forward': _flash_attn_varlen(False),
    f'{_FLASH_ATTN}_varlen_backward': _flash_attn_varlen(True),
    'flash_attn_3::_flash_attn_forward': _flash_attn_3(False),
    'flash_attn_3::_flash_attn_backward': _flash_attn_3(True),
    **dict.fromkeys(('aten::zero_', 'aten::fill_', 'aten::normal_', 'aten::uniform_', 'aten::arange'), _written),
    'aten::copy_': _copied_onto,
    **dict.fromkeys(('aten::embedding', 'aten::index', 'aten::index_select', 'aten::gather'), _gathered),
    'aten::embedding_dense_backward': _scattered,
    'fsdp::all_gather_copy_in': _copied_in,
    **dict.fromkeys(('aten::_foreach_copy_', 'aten::_foreach_zero_'), _written_lists),
}


#: What operators begin with that compute more than what they read and write tells: decompositions, transforms, recurrent
#: networks, sorting and what sorts, and distances between all pairs.
_MORE_THAN_BYTES = tuple(
    f'aten::{name}'
    for name in (
        *(
            'linalg_',
            '_linalg_',
            'cholesky',
            'geqrf',
            'ormqr',
            'orgqr',
            'triangular_solve',
            'lu_',
            '_lu_',
            'svd',
            '_svd',
        ),
        *('_fft_', '_cudnn_rnn', 'lstm', 'gru', 'rnn_', '_ctc_loss', '_cudnn_ctc_loss', '_cdist', '_pdist'),
        *('sort', 'argsort', 'msort', 'topk', 'kthvalue', 'median', 'nanmedian', 'mode', 'unique', '_unique'),
        *('searchsorted', 'histc', 'bincount', 'multinomial', 'randperm', '_sparse_'),
    )
)
_ONE_PASS = ('aten::linalg_vector_norm', 'aten::linalg_cross', 'aten::linalg_diagonal')
#: The namespaces of torch whose other operators go through their tensors once.
_OF_TORCH = ('aten', 'prims', 'fsdp', 'c10d', '_c10d_functional', 'profiler')


def follows_from_bytes(name: str) -> bool:
    """Whether an operator without a rule of its own takes as long as its bytes do. Of one that is not torch's nobody knows.

    >>> [follows_from_bytes(name) for name in ('aten::gelu', 'aten::_fft_c2c', 'aten::linalg_vector_norm', 'mine::scan')]
    [True, False, True, False]
    """
    if name.partition('::')[0] not in _OF_TORCH:
        return False
    return name.startswith(_ONE_PASS) or not name.startswith(_MORE_THAN_BYTES)


def _rule_of(name: str) -> _Rule:
    plain = name.partition('.')[0]
    if plain in _RULES:
        return _RULES[plain]
    if plain.startswith('aten::_fused_') and plain.endswith('_'):
        return _fused_optimizer
    if plain.startswith('aten::_foreach_') and plain.endswith('_'):
        return _in_place_lists
    return _read_and_write
