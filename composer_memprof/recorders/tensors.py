"""Find the tensors in nested values, and the plain tensors that other tensors consist of.

>>> import torch
>>> from composer_memprof.recorders.tensors import named_tensors_in
>>> [name for name, _ in named_tensors_in({'ids': torch.ones(2), 'masks': [torch.ones(2)]}, 'batch')]
['batch.ids', 'batch.masks.0']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, sparse_bsc, sparse_bsr, sparse_coo, sparse_csc, sparse_csr, strided

from composer_memprof.recorders.torch_private.tensors import COO_PARTS, FLATTEN, inner_tensors

_BY_ROW, _BY_COLUMN = ('crow_indices', 'col_indices', 'values'), ('ccol_indices', 'row_indices', 'values')
_SPARSE_PARTS = {
    sparse_coo: COO_PARTS,
    sparse_csr: _BY_ROW,
    sparse_bsr: _BY_ROW,
    sparse_csc: _BY_COLUMN,
    sparse_bsc: _BY_COLUMN,
}
#: Levels of nesting that are searched. There is a limit because a structure may contain itself.
_DEPTH = 8


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    """The tensors in mappings, sequences and sets, nested up to ``depth`` times."""
    if isinstance(value, Tensor):
        yield value
    elif depth:
        for _, item in items_in(value):
            yield from tensors_in(item, depth - 1)


def named_tensors_in(value: Any, name: str, depth: int = _DEPTH) -> Iterator[tuple[str, Tensor]]:
    """As :func:`tensors_in`, each with its path: ``batch.labels``, ``batch.0``."""
    if isinstance(value, Tensor):
        yield name, value
    elif depth:
        for key, item in items_in(value):
            yield from named_tensors_in(item, f'{name}.{key}', depth - 1)


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors with storages of their own that ``tensor`` consists of.

    Those inside a wrapper (a DTensor) or a sparse tensor, or the tensor itself. An opaque one, as MKL-DNN's, has none.
    """
    if hasattr(type(tensor), FLATTEN):
        for inner in inner_tensors(tensor):
            yield from parts_of(inner)
    elif tensor.layout is strided:
        yield tensor
    else:
        for name in _SPARSE_PARTS.get(tensor.layout, ()):
            yield getattr(tensor, name)()


def items_in(value: Any) -> Iterable[tuple[Any, Any]]:
    """The items of a sequence, a set or a mapping, with their indices or keys; nothing for any other value."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return enumerate(value)
    return value.items() if isinstance(value, Mapping) else ()
