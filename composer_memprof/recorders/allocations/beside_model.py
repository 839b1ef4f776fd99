"""What lies on a GPU since before a recording and is no part of the model: another model, a table, a list of tensors.

Meant for a forked child, as :mod:`keepers`.

>>> import torch
>>> class Distillation:
...     def __init__(self):
...         self.teacher = torch.nn.Linear(8, 8, bias=False)
>>> callback = Distillation()
>>> kept_beside_model({callback.teacher.weight.data_ptr(): 256}, known=set())
[('Distillation.teacher', 256)]
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from composer_memprof.recorders.allocations.keepers import MOST_OBJECTS, address_of, keepers_of_objects
from composer_memprof.recorders.modules.holders import live_tensors

#: Less than this share of what is allocated is not searched for; less than this share of what is found has no row.
_LEAST, _LEAST_ROW = 0.05, 0.02
#: The most rows.
_MOST_ROWS = 4


def blocks_beside_model(snapshot: Mapping[str, Any], known: Collection[int]) -> dict[int, int]:
    """Bytes by address of the blocks that were allocated before the recording; none if they are few.

    Args:
        snapshot (Mapping): as recorders make it.
        known (Collection[int]): addresses of parameters, gradients and optimizer state, which are left out.
    """
    recorded = {event['addr'] for trace in snapshot['device_traces'] for event in trace if event['action'] == 'alloc'}
    found: dict[int, int] = {}
    total = 0
    for segment in snapshot['segments']:
        address = segment['address']
        for block in segment['blocks']:
            at = block.get('address', address)
            address = at + block['size']
            if block['state'] == 'active_allocated':
                total += block['size']
                if at not in recorded and at not in known:
                    found[at] = block['size']
    return found if sum(found.values()) >= _LEAST * total else {}


def kept_beside_model(blocks: Mapping[int, int], known: Collection[int]) -> list[tuple[str, int]]:
    """What keeps the tensors in these blocks, in words, and the bytes that it keeps; largest first.

    Args:
        blocks (Mapping[int, int]): bytes by address.
        known (Collection[int]): addresses of the model's own tensors.
    """
    if not blocks or sys.getallocatedblocks() > MOST_OBJECTS:
        return []
    wanted = {id(each): address for each in live_tensors() if (address := address_of(each)) in blocks}
    groups = _by_module(wanted, known)
    of_modules = {address for addresses in groups.values() for address in addresses}
    groups.update(_by_holder({key: address for key, address in wanted.items() if address not in of_modules}))
    sized = {number: sum(blocks[address] for address in addresses) for number, addresses in groups.items()}
    least = _LEAST_ROW * sum(sized.values())
    largest = sorted((number for number in sized if sized[number] >= least), key=lambda number: -sized[number])
    words = keepers_of_objects(largest[:_MOST_ROWS])
    rows: defaultdict[str, int] = defaultdict(int)
    for number, keeper in words.items():
        rows[keeper] += sized[number]
    return sorted(rows.items(), key=lambda row: -row[1])


def _by_module(wanted: Mapping[int, int], known: Collection[int]) -> dict[int, set[int]]:
    """The addresses of wanted tensors, by the ``id`` of the outermost module that has them and no tensor of the model."""
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    parents = {id(child): module for module in modules for child in module.children()}
    groups: defaultdict[int, set[int]] = defaultdict(set)
    for module in modules:
        own = [wanted[id(each)] for each in _tensors(module, recurse=False) if id(each) in wanted]
        if own:
            groups[id(_outermost(module, parents, known))].update(own)
    return dict(groups)


def _outermost(module: nn.Module, parents: Mapping[int, nn.Module], known: Collection[int]) -> nn.Module:
    seen = {id(module)}
    while (parent := parents.get(id(module))) is not None and id(parent) not in seen:
        if any(address_of(each) in known for each in _tensors(parent, recurse=True)):
            break
        module = parent
        seen.add(id(module))
    return module


def _tensors(module: nn.Module, recurse: bool) -> list[torch.Tensor]:
    return [*module.parameters(recurse), *module.buffers(recurse)]


def _by_holder(wanted: Mapping[int, int]) -> dict[int, set[int]]:
    """The addresses of wanted tensors that one object holds, by the ``id`` of one of them."""
    tensors = [each for each in gc.get_objects() if id(each) in wanted]
    groups: dict[int, set[int]] = {}
    grouped: set[int] = {id(tensors)}
    for holder in gc.get_referrers(*tensors):
        if id(holder) == id(tensors):
            continue
        held = [id(each) for each in gc.get_referents(holder) if id(each) in wanted and id(each) not in grouped]
        if held:
            groups[held[0]] = {wanted[each] for each in held}
            grouped.update(held)
    return groups
