"""Blocks added up: by where they were asked for, by module, by category."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.categories import CATEGORIES, RULES, Categories
from composer_memprof.analysis.memory.frames import Place, places
from composer_memprof.analysis.memory.lifetimes import Lifetimes
from composer_memprof.analysis.snapshot.model import Frame, Snapshot


@dataclass(frozen=True)
class PlaceShare:
    """What one place in the code held, of one category. ``bytes`` as :class:`Lifetimes` counts a block's size.

    ``frames``: the user's own where there are any, innermost first; empty where no stack was recorded.
    ``folded``: how many frames of the stack are left out. ``before``: allocated before the recording began.
    ``within``: the frame of a library that asked on their behalf, where they do not tell. ``module``: what tells in
    place of a stack, as for a GPU's backward, whose thread runs no Python; else ``''``.
    """

    bytes: int
    blocks: int
    category: str
    rule: str
    before: bool
    frames: list[Frame]
    folded: int
    within: Optional[Frame] = None
    module: str = ''


@dataclass(frozen=True)
class RuleShare:
    """The part of a category that one rule put there."""

    rule: str
    bytes: int


@dataclass(frozen=True)
class CategoryShare:
    """What one category held, the largest first, and the rules that decided it."""

    category: str
    bytes: int
    blocks: int
    rules: list[RuleShare]


@dataclass(frozen=True)
class ModuleShare:
    """What one module held; ``''`` where it is not known."""

    module: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Attribution:
    """How a device's blocks are added up: computed once, asked for any choice of blocks.

    ``of_stack`` has the place of each stack, ``place`` and ``module`` those of each block, as indices.
    """

    blocks: Lifetimes
    categories: Categories
    places: list[Place]
    of_stack: np.ndarray
    place: np.ndarray
    module: np.ndarray
    modules: list[str]

    def by_place(self, chosen: np.ndarray) -> list[PlaceShare]:
        """The largest first. ``chosen``: indices of blocks."""
        blocks, found = self.blocks, self.categories
        before = (blocks.start[chosen] < 0).astype(np.int64)
        rule, category = found.rule[chosen].astype(np.int64), found.category[chosen].astype(np.int64)
        module = self._module_in_place_of_stack(chosen)
        where = self.place[chosen].astype(np.int64) * len(self.modules) + module
        key = ((where * 2 + before) * len(RULES) + rule) * len(CATEGORIES) + category
        holders = []
        for first, size, count in _sums(key, blocks.size[chosen]):
            block = chosen[first]
            place = self.places[int(self.place[block])]
            holders.append(
                PlaceShare(
                    bytes=size,
                    blocks=count,
                    category=CATEGORIES[int(found.category[block])],
                    rule=RULES[int(found.rule[block])],
                    before=bool(blocks.start[block] < 0),
                    frames=list(place.frames),
                    folded=place.folded,
                    within=place.within,
                    module=self.modules[int(module[first])],
                )
            )
        return holders

    def _module_in_place_of_stack(self, chosen: np.ndarray) -> np.ndarray:
        """The module of each block that neither a stack nor a tensor tells of; 0 for the others."""
        stackless = np.array([not place.frames for place in self.places], dtype=bool)
        told = ~stackless[self.place[chosen]] | (self.categories.tensor[chosen] >= 0)
        return np.where(told, 0, self.module[chosen]).astype(np.int64)

    def by_category(self, chosen: np.ndarray) -> list[CategoryShare]:
        category, rule = self.categories.category[chosen], self.categories.rule[chosen]
        size = self.blocks.size[chosen]
        shares = []
        for first, total, count in _sums(category, size):
            here = np.flatnonzero(category == category[first])
            rules = [RuleShare(RULES[int(rule[here][one])], part) for one, part, _ in _sums(rule[here], size[here])]
            shares.append(CategoryShare(CATEGORIES[int(category[first])], total, count, rules))
        return shares

    def by_module(self, chosen: np.ndarray) -> list[ModuleShare]:
        module = self.module[chosen]
        return [
            ModuleShare(self.modules[int(module[first])], size, count)
            for first, size, count in _sums(module, self.blocks.size[chosen])
        ]


def attribution(snapshot: Snapshot, blocks: Lifetimes, categories: Categories) -> Attribution:
    """A block belongs to the module whose tensor it is seen to be, else to the one that ran when it was allocated."""
    found, of_stack = places(snapshot.stacks)
    modules = list(snapshot.modules)
    module = blocks.module
    tensors = snapshot.tensors
    if len(tensors):
        codes = {name: code for code, name in enumerate(modules)}
        owners = np.zeros(len(tensors.names), dtype=np.int32)
        for number, name in enumerate(tensors.names):
            owner = name.rpartition('.')[0]
            if owner not in codes:
                codes[owner] = len(modules)
                modules.append(owner)
            owners[number] = codes[owner]
        owner_of = np.where(categories.tensor >= 0, owners[tensors.name[categories.tensor]], 0)
        module = np.where(owner_of > 0, owner_of, module)
    return Attribution(blocks, categories, found, of_stack, of_stack[blocks.stack], module, modules)


def _sums(keys: np.ndarray, sizes: np.ndarray) -> list[tuple[int, int, int]]:
    """For each distinct key the place of its first row, the sum of its sizes and its rows; the largest sum first."""
    if not len(keys):
        return []
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    total = np.zeros(len(first), dtype=np.int64)
    np.add.at(total, which, sizes)
    count = np.bincount(which, minlength=len(first))
    order = np.lexsort((first, -total))
    return list(zip(first[order].tolist(), total[order].tolist(), count[order].tolist()))
