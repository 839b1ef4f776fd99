"""The category of each block, and the rule that decided it.

:data:`_RULES` is the one table of rules. They are tried in its order, and the first that applies decides. Rules by tensors
come first: a recorder saw a tensor at the block's address. Rules by phases use the phases in which the block was
allocated and freed. Rules by stacks use the stacks that allocated and freed it. A snapshot of another program has no
tensors and no phases, so only rules by stacks apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from composer_memprof.analysis.memory import library_stacks, stack_kinds
from composer_memprof.analysis.memory.lifetimes import Lifetimes
from composer_memprof.analysis.memory.phases import rows_at
from composer_memprof.analysis.snapshot.model import ALLOC, FREE_COMPLETED, DeviceHistory, Snapshot, Tensors
from composer_memprof.vocabulary import (
    ACTIVATION,
    ALL_GATHER,
    BACKWARD,
    CATEGORY_KEYS,
    DATALOADER,
    FORWARDS,
    GRADIENT,
    INPUT,
    OPTIMIZER,
    OPTIMIZER_STATE,
    PARAMETER,
    RECOMPUTED,
    REDUCE_SCATTER,
    TEMPORARY,
    TENSOR_CATEGORIES,
    UNKNOWN,
    UNSHARDED_GRADIENT,
    UNSHARDED_PARAMETER,
)

#: In the order of their codes.
CATEGORIES = CATEGORY_KEYS

#: Times at which the addresses of tensors are compared with blocks. A recorder notes them at a window's start and end.
_MOST_LOOKUPS = 64


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


class _Facts:
    """What the rules ask about the blocks of one device: bool arrays, one row for each block."""

    def __init__(self, snapshot: Snapshot, history: DeviceHistory, blocks: Lifetimes) -> None:
        self._snapshot, self._history, self._blocks = snapshot, history, blocks
        self.tensor = _tensors_in_blocks(history, blocks, snapshot.tensors)

    @cached_property
    def _nothing(self) -> np.ndarray:
        return np.zeros(len(self._blocks), dtype=bool)

    # -- tensors and lifetimes

    @cached_property
    def _tensor_category(self) -> np.ndarray:
        return np.append(self._snapshot.tensors.category, np.int8(-1))[self.tensor]

    def holds_tensor(self, category: str) -> np.ndarray:
        return self._tensor_category == TENSOR_CATEGORIES.index(category)

    @cached_property
    def allocated_before(self) -> np.ndarray:
        """Allocated before the recording began."""
        return self._blocks.start < 0

    @cached_property
    def freed(self) -> np.ndarray:
        """Freed within the recording."""
        return (self._blocks.freed >= 0) & (self._blocks.freed < self._blocks.events)

    # -- phases

    @cached_property
    def _phase_rows(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The rows of the phases in which each block was allocated and freed: -1 before the first, or not freed."""
        rows = rows_at(self._history, self._snapshot.phases)
        if rows is None or not len(rows):
            return None
        rows = np.append(rows, -1)
        start, freed = self._blocks.start, self._blocks.freed
        return np.where(start >= 0, rows[start], -1), np.where(self.freed, rows[np.where(self.freed, freed, -1)], -1)

    @cached_property
    def freed_in_same_phase(self) -> np.ndarray:
        if self._phase_rows is None:
            return self._nothing
        allocated, freed = self._phase_rows
        return (allocated >= 0) & (allocated == freed)

    def allocated_in(self, *names: str) -> np.ndarray:
        phases = self._snapshot.phases
        wanted = [number for number, name in enumerate(phases.names) if name in names]
        if self._phase_rows is None or not wanted:
            return self._nothing
        return np.isin(np.append(phases.name, -1)[self._phase_rows[0]], wanted)

    @cached_property
    def allocated_in_last_batch(self) -> np.ndarray:
        if self._phase_rows is None:
            return self._nothing
        batch = self._snapshot.phases.batch
        return batch[np.maximum(self._phase_rows[0], 0)] == batch[-1]

    # -- stacks

    @cached_property
    def _kind_of_stack(self) -> np.ndarray:
        return stack_kinds.stack_kinds(self._snapshot.stacks)

    @cached_property
    def _allocated_by(self) -> np.ndarray:
        return self._kind_of_stack[self._blocks.stack]

    @cached_property
    def _freed_by(self) -> np.ndarray:
        found = np.zeros(len(self._blocks), dtype=np.int8)
        stacks = self._history.stack[self._blocks.freed[self.freed]]
        without_stack = stack_kinds.BACKWARD if self._backward_has_no_stacks else stack_kinds.UNKNOWN
        found[self.freed] = np.where(stacks == 0, without_stack, self._kind_of_stack[stacks])
        return found

    def allocated_by(self, kind: int) -> np.ndarray:
        return self._allocated_by == kind

    def freed_by(self, kind: int) -> np.ndarray:
        return self._freed_by == kind

    @cached_property
    def allocated_in_backward_thread(self) -> np.ndarray:
        """Allocated without a stack on a GPU: threads of the backward pass have no Python stacks."""
        if not self._backward_has_no_stacks:
            return self._nothing
        return (self._blocks.stack == 0) & (self._blocks.start >= 0)

    @cached_property
    def _backward_has_no_stacks(self) -> bool:
        """True for a GPU's history with Python stacks only."""
        action = self._history.action
        allocations = self._history.stack[action == ALLOC]
        return bool(np.any(action > FREE_COMPLETED) and np.any(allocations > 0) and np.any(allocations == 0))

    @cached_property
    def _purpose_of_stack(self) -> np.ndarray:
        return library_stacks.purposes(self._snapshot.stacks)

    @cached_property
    def _stack_of_free(self) -> np.ndarray:
        """0, the empty stack, for a block that was not freed."""
        found = np.zeros(len(self._blocks), dtype=np.int32)
        found[self.freed] = self._history.stack[self._blocks.freed[self.freed]]
        return found

    def allocated_for(self, purpose: int) -> np.ndarray:
        return self._purpose_of_stack[self._blocks.stack] == purpose

    def freed_for(self, purpose: int) -> np.ndarray:
        return self._purpose_of_stack[self._stack_of_free] == purpose

    @cached_property
    def freed_in_backward(self) -> np.ndarray:
        """Freed by the backward pass, or without a stack, as threads of the backward pass and of collectives do."""
        return self.freed & ((self._stack_of_free == 0) | self.freed_by(stack_kinds.BACKWARD))

    @cached_property
    def kept_until_zero_grad(self) -> np.ndarray:
        """Not freed, or freed by ``zero_grad``."""
        return ~self.freed | self.freed_by(stack_kinds.ZERO_GRAD)


@dataclass(frozen=True)
class _Rule:
    """Blocks for which ``applies`` is true get ``category``; ``reason`` tells people why."""

    category: str
    reason: str
    applies: Callable[[_Facts], np.ndarray]


def _holds_tensor(category: str) -> _Rule:
    return _Rule(category, 'a tensor of this category was seen in it', lambda of: of.holds_tensor(category))


_RULES = (
    *map(_holds_tensor, TENSOR_CATEGORIES),
    # By stacks of libraries.
    _Rule(ALL_GATHER, 'by stack: allocated to gather', lambda of: of.allocated_for(library_stacks.ALL_GATHER)),
    _Rule(
        UNSHARDED_PARAMETER,
        'by stack: allocated by FSDP2 for a gathered parameter',
        lambda of: of.allocated_for(library_stacks.UNSHARDED_PARAMETER),
    ),
    _Rule(
        REDUCE_SCATTER,
        'by stack: allocated to reduce and scatter',
        lambda of: (
            of.allocated_for(library_stacks.REDUCE_SCATTER)
            | (of.allocated_for(library_stacks.REDUCTION) & (of.freed_in_same_phase | of.freed_in_backward))
        ),
    ),
    _Rule(
        GRADIENT,
        'by stack: reduced and scattered by FSDP2, kept',
        lambda of: of.allocated_for(library_stacks.REDUCTION),
    ),
    _Rule(
        UNSHARDED_GRADIENT,
        'by stack: freed by FSDP2 once it was reduced',
        lambda of: of.freed_for(library_stacks.REDUCTION),
    ),
    _Rule(
        UNSHARDED_GRADIENT,
        'by stack: allocated by FSDP2 to add up gradients',
        lambda of: of.allocated_for(library_stacks.UNSHARDED_GRADIENT),
    ),
    _Rule(
        RECOMPUTED,
        'by stack: computed again by activation checkpointing, kept until its backward',
        lambda of: of.allocated_for(library_stacks.RECOMPUTATION) & ~of.freed_for(library_stacks.RECOMPUTATION),
    ),
    # By phases.
    _Rule(TEMPORARY, 'allocated and freed in the same phase', lambda of: of.freed_in_same_phase),
    _Rule(INPUT, 'allocated while a batch was loaded', lambda of: of.allocated_in(DATALOADER)),
    _Rule(ACTIVATION, 'allocated in forward, freed in a later phase', lambda of: of.allocated_in(*FORWARDS) & of.freed),
    _Rule(
        ACTIVATION,
        'allocated in forward of the last batch, not freed',
        lambda of: of.allocated_in(*FORWARDS) & of.allocated_in_last_batch,
    ),
    _Rule(UNKNOWN, 'allocated in forward, kept after its batch', lambda of: of.allocated_in(*FORWARDS)),
    _Rule(GRADIENT, 'allocated in backward, kept after it', lambda of: of.allocated_in(BACKWARD)),
    _Rule(OPTIMIZER_STATE, 'allocated by the optimizer, not freed', lambda of: of.allocated_in(OPTIMIZER) & ~of.freed),
    _Rule(TEMPORARY, 'allocated by the optimizer, freed in a later phase', lambda of: of.allocated_in(OPTIMIZER)),
    # By stacks.
    _Rule(
        OPTIMIZER_STATE,
        'by stack: allocated by an optimizer, not freed',
        lambda of: of.allocated_by(stack_kinds.OPTIMIZER) & ~of.freed,
    ),
    _Rule(TEMPORARY, 'by stack: allocated by an optimizer, freed', lambda of: of.allocated_by(stack_kinds.OPTIMIZER)),
    _Rule(
        GRADIENT,
        'by stack: allocated in backward, kept or freed by zero_grad',
        lambda of: of.allocated_by(stack_kinds.BACKWARD) & of.kept_until_zero_grad,
    ),
    _Rule(TEMPORARY, 'by stack: allocated in backward, freed', lambda of: of.allocated_by(stack_kinds.BACKWARD)),
    _Rule(
        GRADIENT,
        'no stack, as in backward threads: kept or freed by zero_grad',
        lambda of: of.allocated_in_backward_thread & of.kept_until_zero_grad,
    ),
    _Rule(TEMPORARY, 'no stack, as in backward threads: freed', lambda of: of.allocated_in_backward_thread),
    _Rule(
        ACTIVATION,
        'by stack: allocated in forward, freed in backward',
        lambda of: of.allocated_by(stack_kinds.FORWARD) & of.freed_by(stack_kinds.BACKWARD),
    ),
    _Rule(
        ACTIVATION,
        'by stack: allocated in forward, not freed',
        lambda of: of.allocated_by(stack_kinds.FORWARD) & ~of.freed,
    ),
    _Rule(
        TEMPORARY, 'by stack: allocated in forward, freed elsewhere', lambda of: of.allocated_by(stack_kinds.FORWARD)
    ),
    _Rule(INPUT, 'by stack: allocated by a data loader', lambda of: of.allocated_by(stack_kinds.LOADER)),
    _Rule(PARAMETER, 'by stack: allocated when its module was made', lambda of: of.allocated_by(stack_kinds.MODULE)),
    # The rest.
    _Rule(UNKNOWN, 'allocated before the recording began', lambda of: of.allocated_before),
)
_NO_RULE = len(_RULES)
#: The reasons of the rules, for people, in the order of their codes.
RULES = (*(rule.reason for rule in _RULES), 'no rule applies')


def categories(snapshot: Snapshot, history: DeviceHistory, blocks: Lifetimes) -> Categories:
    """The category of each block of a device."""
    facts = _Facts(snapshot, history, blocks)
    category = np.full(len(blocks), CATEGORIES.index(UNKNOWN), dtype=np.int8)
    decided_by = np.full(len(blocks), _NO_RULE, dtype=np.int8)
    undecided = np.ones(len(blocks), dtype=bool)
    for code, rule in enumerate(_RULES):
        chosen = undecided & rule.applies(facts)
        category[chosen] = CATEGORIES.index(rule.category)
        decided_by[chosen] = code
        undecided[chosen] = False
    return Categories(category, decided_by, facts.tensor)


def _tensors_in_blocks(history: DeviceHistory, blocks: Lifetimes, tensors: Tensors) -> np.ndarray:
    """For each block the last row of ``tensors`` whose address was in it while it was active, or -1."""
    found = np.full(len(blocks), -1, dtype=np.int32)
    if not len(tensors):
        return found
    if history.has_times:
        events_before = np.searchsorted(history.time_us, tensors.time_us, side='right')
    else:
        events_before = np.full(len(tensors), len(history.action))
    lookups = np.unique(events_before)
    if len(lookups) > _MOST_LOOKUPS:
        lookups = lookups[np.linspace(0, len(lookups) - 1, _MOST_LOOKUPS).astype(int)]
    for count in lookups.tolist():
        live = blocks.active_after(count)
        live = live[np.argsort(blocks.address[live], kind='stable')]
        if not len(live):
            continue
        rows = np.flatnonzero(events_before == count)
        place = np.searchsorted(blocks.address[live], tensors.address[rows], side='right') - 1
        block = live[np.maximum(place, 0)]
        inside = (place >= 0) & (
            tensors.address[rows] < blocks.address[block] + np.maximum(blocks.size[block], 1).astype(np.uint64)
        )
        found[block[inside]] = rows[inside]
    return found
