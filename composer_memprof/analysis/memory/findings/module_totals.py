"""Memory of each module including all modules inside of it, from the memory of each module alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from composer_memprof.analysis.memory.findings.attribution import ModuleShare

#: Most modules around one: a name in a file that is not trusted may have any number of dots.
_MOST_LEVELS = 64


@dataclass(frozen=True)
class ModuleTotal:
    """The blocks of one module and of every module inside of it.

    Args:
        module (str): dotted name.
        bytes (int): of the module and everything inside of it.
        own (int): of the module alone.
        blocks (int): number of blocks of ``bytes``.
    """

    module: str
    bytes: int
    own: int
    blocks: int


def module_totals(shares: Iterable[ModuleShare]) -> list[ModuleTotal]:
    """The total of each named module and of each module around it, largest first, outer modules before inner ones.

    A module without memory of its own and with one module inside of it is left out, because both have the same total.

    >>> module_totals([ModuleShare('blocks.0.up', 6, 1), ModuleShare('blocks.0', 4, 2), ModuleShare('', 9, 1)])
    [ModuleTotal(module='blocks.0', bytes=10, own=4, blocks=3), ModuleTotal(module='blocks.0.up', bytes=6, own=6, blocks=1)]
    """
    total: dict[str, int] = {}
    own: dict[str, int] = {}
    blocks: dict[str, int] = {}
    inside: dict[str, set[str]] = {}
    for share in shares:
        if not share.module:
            continue
        own[share.module] = own.get(share.module, 0) + share.bytes
        inner = None
        for name in _with_those_around(share.module):
            total[name] = total.get(name, 0) + share.bytes
            blocks[name] = blocks.get(name, 0) + share.blocks
            if inner is not None:
                inside.setdefault(name, set()).add(inner)
            inner = name
    found = [
        ModuleTotal(name, total[name], own.get(name, 0), blocks[name])
        for name in total
        if own.get(name) or len(inside.get(name, ())) != 1
    ]
    return sorted(found, key=lambda module: (-module.bytes, module.module.count('.'), module.module))


def outside_of(shown: Iterable[ModuleTotal], modules: Iterable[ModuleTotal]) -> list[ModuleTotal]:
    """The ``modules`` with memory of their own that are neither in ``shown`` nor inside of a module of ``shown``."""
    names = {module.module for module in shown}
    return [module for module in modules if module.own and not names.intersection(_with_those_around(module.module))]


def _with_those_around(name: str) -> list[str]:
    """The module, then those around it, the innermost first: ``['a.b', 'a']``."""
    parts = name.split('.', _MOST_LEVELS)
    return [name, *('.'.join(parts[:count]) for count in range(len(parts) - 1, 0, -1))]
