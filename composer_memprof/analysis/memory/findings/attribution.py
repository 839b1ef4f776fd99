"""Sums of a device's blocks by place in the code, by module and by category."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.frames import Place, places_of
from composer_memprof.analysis.memory.blocks.lifetimes import Lifetimes
from composer_memprof.analysis.memory.categories.categories import CATEGORIES, RULES, Categories
from composer_memprof.analysis.module_names import layer_name
from composer_memprof.analysis.snapshot.model import Frame, Snapshot
from composer_memprof.vocabulary import PARAMETER, TENSOR_CATEGORIES


@dataclass(frozen=True)
class PlaceShare:
    """The blocks of one place in the code, of one category and rule.

    Args:
        bytes (int): sum of the blocks' sizes; see :class:`Lifetimes` for the size of a block.
        blocks (int): number of blocks.
        largest (int): bytes of the largest block.
        category (str): their category.
        rule (str): the reason for it.
        before (bool): True if they were allocated before the recording began.
        frames (list[Frame]): innermost first, the user's own if there are any; empty if no stack was recorded.
        folded (int): number of frames of the stack that are left out.
        within (Frame, optional): the library's frame that allocated for ``frames``, if they do not show what allocated.
        module (str): the module that ran, for blocks without a stack, such as those of a GPU's backward; else ``''``.
        owner (str): the module that most of the bytes belong to, equal layers taken together; ``''`` if none is known.
    """

    bytes: int
    blocks: int
    largest: int
    category: str
    rule: str
    before: bool
    frames: list[Frame]
    folded: int
    within: Optional[Frame] = None
    module: str = ''
    owner: str = ''

    @property
    def large(self) -> int:
        """The blocks that are as large as the largest, where few of that size have all of the bytes."""
        return max(round(self.bytes / max(self.largest, 1)), 1)


@dataclass(frozen=True)
class RuleShare:
    """The bytes of a category that one rule decided."""

    rule: str
    bytes: int


@dataclass(frozen=True)
class CategoryShare:
    """The blocks of one category, and the rules that decided it, largest first."""

    category: str
    bytes: int
    blocks: int
    rules: list[RuleShare]


@dataclass(frozen=True)
class CategoryPeak:
    """The largest number of bytes of a category, and the number of events up to that moment."""

    category: str
    bytes: int
    event: int


@dataclass(frozen=True)
class ModuleShare:
    """The blocks of one module; ``''`` if the module is not known."""

    module: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Attribution:
    """Place, module and category of each block of a device; sums any choice of blocks, given as indices.

    Args:
        blocks (Lifetimes): the blocks.
        categories (Categories): their categories.
        places (list[Place]): distinct places in the code.
        of_stack (ndarray): int32, for each stack of the snapshot an index into ``places``.
        place (ndarray): int32, for each block an index into ``places``.
        module (ndarray): int32, for each block an index into ``modules``.
        modules (list[str]): dotted names.
    """

    blocks: Lifetimes
    categories: Categories
    places: list[Place]
    of_stack: np.ndarray
    place: np.ndarray
    module: np.ndarray
    modules: list[str]

    def by_place(self, chosen: np.ndarray) -> list[PlaceShare]:
        """The sums of the chosen blocks by place, largest first."""
        blocks, found = self.blocks, self.categories
        before = (blocks.start[chosen] < 0).astype(np.int64)
        rule, category = found.rule[chosen].astype(np.int64), found.category[chosen].astype(np.int64)
        module = self._module_instead_of_stack(chosen)
        where = self.place[chosen].astype(np.int64) * len(self.modules) + module
        key = ((where * 2 + before) * len(RULES) + rule) * len(CATEGORIES) + category
        owners = self._owners(key, chosen)
        shares = []
        for first, size, count, largest in _sums(key, blocks.size[chosen]):
            block = chosen[first]
            place = self.places[int(self.place[block])]
            shares.append(
                PlaceShare(
                    bytes=size,
                    blocks=count,
                    largest=largest,
                    category=CATEGORIES[int(found.category[block])],
                    rule=RULES[int(found.rule[block])],
                    before=bool(blocks.start[block] < 0),
                    frames=list(place.frames),
                    folded=place.folded,
                    within=place.within,
                    module=self.modules[int(module[first])],
                    owner=owners[int(key[first])],
                )
            )
        return shares

    def _owners(self, key: np.ndarray, chosen: np.ndarray) -> dict[int, str]:
        """For each distinct key of the chosen blocks, the module of most of its bytes, equal layers taken together."""
        names, layer_of = np.unique([layer_name(module) for module in self.modules], return_inverse=True)
        layer = layer_of[self.module[chosen]]
        found: dict[int, str] = {}
        for first, *_ in _sums(key * len(names) + layer, self.blocks.size[chosen]):
            found.setdefault(int(key[first]), str(names[layer[first]]))
        return found

    def _module_instead_of_stack(self, chosen: np.ndarray) -> np.ndarray:
        """The module of each block that has neither a stack nor a tensor; 0 for the others."""
        has_frames = np.array([len(place.frames) > 0 for place in self.places], dtype=bool)
        known = has_frames[self.place[chosen]] | (self.categories.tensor[chosen] >= 0)
        return np.where(known, 0, self.module[chosen]).astype(np.int64)

    def by_category(self, chosen: np.ndarray) -> list[CategoryShare]:
        """The sums of the chosen blocks by category, largest first."""
        category, rule = self.categories.category[chosen], self.categories.rule[chosen]
        size = self.blocks.size[chosen]
        shares = []
        for first, total, count, _ in _sums(category, size):
            here = np.flatnonzero(category == category[first])
            rules = [RuleShare(RULES[int(rule[here][one])], part) for one, part, *_ in _sums(rule[here], size[here])]
            shares.append(CategoryShare(CATEGORIES[int(category[first])], total, count, rules))
        return shares

    def category_peaks(self, within: slice) -> list[CategoryPeak]:
        """The peak of each category after any number of events in ``within``, largest first."""
        blocks = self.blocks
        found = []
        for code in np.unique(self.categories.category).tolist():
            mine = self.categories.category == code
            change = np.zeros(blocks.events + 2, dtype=np.int64)
            np.add.at(change, blocks.start[mine] + 1, blocks.size[mine])
            np.subtract.at(change, blocks.freed[mine] + 1, blocks.size[mine])
            over_time = np.cumsum(change[:-1])[within]
            event = int(over_time.argmax())
            found.append(CategoryPeak(CATEGORIES[code], int(over_time[event]), (within.start or 0) + event))
        return sorted(found, key=lambda peak: -peak.bytes)

    def by_module(self, chosen: np.ndarray) -> list[ModuleShare]:
        """The sums of the chosen blocks by module, largest first."""
        module = self.module[chosen]
        return [
            ModuleShare(self.modules[int(module[first])], size, count)
            for first, size, count, _ in _sums(module, self.blocks.size[chosen])
        ]


def attribute(snapshot: Snapshot, blocks: Lifetimes, categories: Categories) -> Attribution:
    """Attribute the blocks of a device.

    A block belongs to the module that owns its tensor, if one was seen in it, else to the module that ran when it was
    allocated.
    """
    places, of_stack = places_of(snapshot.stacks)
    modules = list(snapshot.modules)
    module = blocks.module
    tensors = snapshot.tensors
    if len(tensors):
        codes = {name: code for code, name in enumerate(modules)}
        owners = np.zeros(len(tensors.names), dtype=np.int32)
        of_parameters = tensors.category == TENSOR_CATEGORIES.index(PARAMETER)
        parameters = {tensors.names[number] for number in np.unique(tensors.name[of_parameters])}
        for number, name in enumerate(tensors.names):
            owner = _owner(name, parameters)
            if owner not in codes:
                codes[owner] = len(modules)
                modules.append(owner)
            owners[number] = codes[owner]
        owner_of = np.where(categories.tensor >= 0, owners[tensors.name[categories.tensor]], 0)
        module = np.where(owner_of > 0, owner_of, module)
    return Attribution(blocks, categories, places, of_stack, of_stack[blocks.stack], module, modules)


def _owner(name: str, parameters: Set[str]) -> str:
    """The module of a tensor. An optimizer's state has the name of its parameter, then names of its own."""
    owner = name.rpartition('.')[0]
    outer = owner
    while outer:
        if outer in parameters:
            return outer.rpartition('.')[0]
        outer = outer.rpartition('.')[0]
    return owner


def _sums(keys: np.ndarray, sizes: np.ndarray) -> list[tuple[int, int, int, int]]:
    """The first row of each distinct key, the sum of its sizes, the number of its rows and its largest; largest sum first."""
    if not len(keys):
        return []
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    total = np.zeros(len(first), dtype=np.int64)
    np.add.at(total, which, sizes)
    count = np.bincount(which, minlength=len(first))
    largest = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(largest, which, sizes)
    order = np.lexsort((first, -total))
    return list(zip(*(column[order].tolist() for column in (first, total, count, largest))))
