"""What a plan reads from a model: its repeated blocks, and the units that FSDP gathers at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from composer_memprof.plans.trial import CHECKPOINT_MARK, Share
from composer_memprof.recorders.modules.names import class_name, named_modules, own_module


def repeated(model: nn.Module) -> dict[str, int]:
    """The modules whose submodules are all of one class and have submodules themselves, and how many those are.

    >>> repeated(nn.ModuleDict({'layers': nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(3))}))
    {'layers': 3}
    """
    return {name: len(list(module.children())) for name, module in named_modules(model) if _repeats(module)}


def blocks_of(model: nn.Module) -> str:
    """The class of the repeated modules that together hold most parameters, such as a transformer's blocks.

    >>> blocks_of(nn.Sequential(*(nn.TransformerEncoderLayer(8, 2) for _ in range(3))))
    'TransformerEncoderLayer'
    """
    held: Counter[str] = Counter()
    for container in filter(_repeats, model.modules()):
        held[class_name(next(container.children()))] += sum(each.numel() for each in container.parameters())
    return max(held, key=lambda name: held[name], default='')


def _repeats(container: nn.Module) -> bool:
    children = list(container.children())
    return len(children) > 1 and len(set(map(class_name, children))) == 1 and any(True for _ in children[0].children())


def says_what_to_checkpoint(model: nn.Module) -> bool:
    """Whether the model tells Composer which modules to checkpoint, when FSDP's config says that it should.

    >>> says_what_to_checkpoint(nn.Sequential(nn.Linear(2, 2)))
    False
    """
    return any(hasattr(child, 'activation_checkpointing_fn') for child in model.children()) or any(
        getattr(module, CHECKPOINT_MARK, False) for module in model.modules()
    )


def unit_of_all_blocks(model: nn.Module, blocks: str) -> str:
    """The class of the FSDP unit that holds all ``blocks`` (all modules if that is empty); ``''`` if there is none.

    >>> unit_of_all_blocks(nn.Sequential(nn.Linear(2, 2)), '')
    ''
    """
    found = [
        (own_module(module), unit)
        for module, unit in _units(model, None)
        if class_name(module) == (blocks or class_name(module))
    ]
    units = {id(unit): unit for _, unit in found}
    if len(units) > 1 or len({id(module) for module, _ in found}) < 2:
        return ''
    (unit,) = units.values()
    return '' if unit is None else class_name(unit)


def _units(module: nn.Module, unit: Optional[nn.Module]) -> Iterator[tuple[nn.Module, Optional[nn.Module]]]:
    """Each module with parameters, and the FSDP unit that it is in."""
    if isinstance(module, (FSDPModule, FullyShardedDataParallel)):
        unit = module
    if any(True for _ in module.parameters()):
        yield module, unit
    for child in module.children():
        yield from _units(child, unit)


def summed_by_block(shares: Sequence[Share], containers: Mapping[str, int]) -> list[Share]:
    """The shares of modules, those within repeated blocks summed over all of these; largest first.

    Args:
        containers: of :func:`repeated`.

    >>> summed_by_block([Share('layers.0', 1), Share('layers.2.up', 2), Share('head', 4)], {'layers': 3})
    [Share(name='head', bytes=4), Share(name='layers.* (3)', bytes=3)]
    """
    sums: Counter[str] = Counter()
    for share in shares:
        sums[_of_block(share.name, containers)] += share.bytes
    return [Share(name, size) for name, size in sums.most_common()]


def _of_block(name: str, containers: Mapping[str, int]) -> str:
    parts = name.split('.') if name else []
    for length in range(len(parts)):
        container = '.'.join(parts[:length])
        if container in containers:
            return f'{container}.* ({containers[container]})'.lstrip('.')
    return name
