"""Which code belongs to which modules of a model: a stack then names modules, where no hook has noted them."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType

from torch import nn

from composer_memprof.recorders.modules.names import named_modules
from composer_memprof.recorders.torch_private.wrappers import class_before_sharding

#: A model has some five for each module.
_MOST_ROWS = 20_000
#: Packages whose modules are the leaves of a model, called by every layer's own code.
_OF_TORCH = ('torch.', 'composer.')

Row = tuple[str, int, int, str]


def code_of_modules(model: nn.Module) -> list[Row]:
    """File, first line, last line and dotted name, for each function of each module's class, without torch's own.

    Args:
        model (Module): with or without wrappers.
    """
    places: dict[type, list[tuple[str, int, int]]] = {}
    rows: list[Row] = []
    for name, module in named_modules(model):
        kind = class_before_sharding(type(module))
        if kind not in places:
            places[kind] = [place for base in kind.__mro__ for place in _functions(base)]
        rows += [(*place, name) for place in places[kind]]
        if len(rows) > _MOST_ROWS:
            return rows[:_MOST_ROWS]
    return rows


def _functions(kind: type) -> Iterator[tuple[str, int, int]]:
    if f'{kind.__module__}.'.startswith(_OF_TORCH) or kind is object:
        return
    for name, member in vars(kind).items():
        if isinstance(member, FunctionType) and name != '__init__':
            code = member.__code__
            yield code.co_filename, code.co_firstlineno, max(_lines(code), default=code.co_firstlineno)


def _lines(code: CodeType) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line is not None)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _lines(inner)
