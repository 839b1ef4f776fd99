"""The part of training that each event belongs to, by its call stack, for recordings without phases."""

from __future__ import annotations

import numpy as np

from composer_memprof.analysis.computed_once import computed_once
from composer_memprof.analysis.memory.blocks import stack_kinds
from composer_memprof.analysis.memory.blocks.lifetimes import Lifetimes
from composer_memprof.analysis.snapshot.model import ALLOC, FREE_COMPLETED, DeviceHistory

#: Kind of a free without a stack whose neighbors are of different kinds.
NOT_KNOWN = -1


def backward_has_no_stacks(history: DeviceHistory) -> bool:
    """True for a GPU's history with Python stacks only."""
    allocations = history.stack[history.action == ALLOC]
    segments = history.segments
    is_caching = np.any(history.action > FREE_COMPLETED) or segments.active.sum() < segments.total_size.sum()
    return bool(is_caching and np.any(allocations > 0) and np.any(allocations == 0))


class StackTimes:
    """The kinds of the stacks that allocated and freed each block, and of those between.

    Args:
        history (DeviceHistory): of one device.
        blocks (Lifetimes): its blocks.
        kind_of_stack (ndarray): int8, for each stack of the snapshot.
    """

    def __init__(self, history: DeviceHistory, blocks: Lifetimes, kind_of_stack: np.ndarray) -> None:
        self._history, self._blocks, self._kind_of_stack = history, blocks, kind_of_stack
        self.freed = (blocks.freed >= 0) & (blocks.freed < blocks.events)

    @computed_once
    def backward_has_no_stacks(self) -> bool:
        return backward_has_no_stacks(self._history)

    @computed_once
    def allocated_by(self) -> np.ndarray:
        """int8, for each block."""
        return self._kind_of_stack[self._blocks.stack]

    @computed_once
    def freed_by(self) -> np.ndarray:
        """int8, for each block; ``NOT_KNOWN`` for a free without a stack that may belong to either of two parts."""
        found = np.zeros(len(self._blocks), dtype=np.int8)
        events = self._blocks.freed[self.freed]
        stacks = self._history.stack[events]
        if self.frees_have_stacks:
            without_stack = stack_kinds.BACKWARD if self.backward_has_no_stacks else stack_kinds.UNKNOWN
            found[self.freed] = np.where(stacks == 0, without_stack, self._kind_of_stack[stacks])
        else:
            found[self.freed] = self._kind_around[events]
        return found

    def between(self, kind: int) -> np.ndarray:
        """True for each block during whose life another one was allocated by this kind."""
        before = np.concatenate([[0], np.cumsum(self._kind_of_event == kind)])
        end = np.clip(self._blocks.freed, 0, self._blocks.events)
        return before[end] > before[np.minimum(self._blocks.start + 1, end)]

    @computed_once
    def frees_have_stacks(self) -> bool:
        """False for a recording that has only the stacks of allocations."""
        action, stack = self._history.action, self._history.stack
        frees = (action > ALLOC) & (action <= FREE_COMPLETED)
        return bool(np.any(stack[frees] > 0)) or not np.any(stack[action == ALLOC] > 0)

    @computed_once
    def _kind_of_event(self) -> np.ndarray:
        """int8, of each allocation; 0 for other events."""
        is_alloc = self._history.action == ALLOC
        kind = np.where(is_alloc, self._kind_of_stack[self._history.stack], stack_kinds.UNKNOWN)
        if self.backward_has_no_stacks:
            kind = np.where(is_alloc & (self._history.stack == 0), stack_kinds.BACKWARD, kind)
        return kind.astype(np.int8)

    @computed_once
    def _kind_around(self) -> np.ndarray:
        """int8, for each event the kind of the allocations before and after it, if they have the same."""
        kinds = self._kind_of_event
        index = np.arange(len(kinds))
        known = kinds != stack_kinds.UNKNOWN
        before = np.maximum.accumulate(np.where(known, index, -1))
        after = np.minimum.accumulate(np.where(known, index, len(kinds))[::-1])[::-1]
        has_both = (before >= 0) & (after < len(kinds))
        one, other = kinds[np.maximum(before, 0)], kinds[np.minimum(after, len(kinds) - 1)]
        return np.where(has_both & (one == other), one, NOT_KNOWN).astype(np.int8)
