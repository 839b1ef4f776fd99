"""How deep in a model its blocks are: the layers that repeat, such as those of a transformer."""

from __future__ import annotations

from collections import defaultdict

from torch import nn

from composer_memprof.recorders.modules.names import class_name, named_modules

#: Of a model without blocks: the root module and its children.
_WITHOUT_BLOCKS = 2


def block_depth(root: nn.Module) -> int:
    """The level of the blocks, ``root`` being level 1; 2 if there are none.

    Blocks are at least two modules of one class that are numbered in one parent. Of several such groups, the one with
    most parameters counts.

    >>> mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    >>> block_depth(nn.ModuleDict({'decoder': nn.ModuleList([mlp, nn.Sequential(nn.Linear(4, 4))])}))
    3
    """
    sizes: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # by parent and class
    for name, module in named_modules(root):
        parent, _, last = name.rpartition('.')
        if last.isdigit():
            sizes[parent, class_name(module)].append(sum(parameter.numel() for parameter in module.parameters()))
    groups = [
        (sum(found), -_level(parent)) for (parent, _), found in sizes.items() if len(found) > 1 and sum(found) > 0
    ]
    if not groups:
        return _WITHOUT_BLOCKS
    _, level_of_parent = max(groups)  # of equal ones the shallowest
    return 1 - level_of_parent


def _level(name: str) -> int:
    return name.count('.') + 2 if name else 1
