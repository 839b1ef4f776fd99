"""The category of each block, and the rule that decided it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.memory.blocks.lifetimes import Lifetimes
from composer_memprof.analysis.memory.categories.facts import BlockFacts
from composer_memprof.analysis.memory.categories.rules import NO_RULE, RULES, RULES_IN_ORDER
from composer_memprof.analysis.snapshot.model import DeviceHistory, Snapshot
from composer_memprof.vocabulary import CATEGORY_KEYS, UNKNOWN

__all__ = ['CATEGORIES', 'RULES', 'Categories', 'categories']

#: In the order of their codes.
CATEGORIES = CATEGORY_KEYS


@dataclass(frozen=True)
class Categories:
    """The category of each block.

    Args:
        category (ndarray): int8, index into ``CATEGORIES``.
        rule (ndarray): int8, index into ``RULES``.
        tensor (ndarray): int32, row of the snapshot's ``tensors`` that was seen in the block, or -1.
    """

    category: np.ndarray
    rule: np.ndarray
    tensor: np.ndarray


def categories(snapshot: Snapshot, history: DeviceHistory, blocks: Lifetimes) -> Categories:
    """The category of each block of a device."""
    facts = BlockFacts(snapshot, history, blocks)
    category = np.full(len(blocks), CATEGORIES.index(UNKNOWN), dtype=np.int8)
    decided_by = np.full(len(blocks), NO_RULE, dtype=np.int8)
    undecided = np.ones(len(blocks), dtype=bool)
    for code, rule in enumerate(RULES_IN_ORDER):
        chosen = undecided & rule.applies(facts)
        category[chosen] = CATEGORIES.index(rule.category)
        decided_by[chosen] = code
        undecided[chosen] = False
    return Categories(category, decided_by, facts.tensor)
