"""The category of each block, and the rule that decided it.

:data:`_RULES` is the one table of rules. They are tried in its order, and the first that applies decides. Rules by tensors
come first: a recorder saw a tensor at the block's address. Rules by phases use the phases in which the block was
allocated and freed. Rules by stacks use the stacks that allocated and freed it. A snapshot of another program has no
tensors and no phases, so only rules by stacks apply, and for blocks from before the recording the sizes of gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from composer_memprof.analysis.memory.blocks import library_stacks, stack_kinds
from composer_memprof.analysis.memory.blocks.lifetimes import Lifetimes
from composer_memprof.analysis.memory.blocks.phases import rows_at
from composer_memprof.analysis.memory.blocks.stack_times import NOT_KNOWN, StackTimes
from composer_memprof.analysis.memory.categories.autocast_copies import copies_of_weights
from composer_memprof.analysis.memory.categories.gradient_sizes import GradientSizes, match_gradient_sizes
from composer_memprof.analysis.snapshot.model import DeviceHistory, Snapshot, Tensors
from composer_memprof.vocabulary import (
    ACTIVATION,
    ALL_GATHER,
    AUTOCAST_COPY,
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
    WORKSPACE,
)

#: In the order of their codes.
CATEGORIES = CATEGORY_KEYS

#: Bytes of cuBLAS' workspace in torch, but for GPUs whose workspace is a power of two, as other blocks are.
_WORKSPACE_BYTES = (8_519_680,)
#: Of one device: one for each thread that calls cuBLAS, that of forward and that of backward.
_MOST_WORKSPACES = 2
#: Optimizers of torch with two tensors of its size for each parameter.
_ADAM = tuple(f'/torch/optim/{name}.py' for name in ('adam', 'adamw', 'adamax', 'nadam', 'radam'))

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
    def _stack_times(self) -> StackTimes:
        return StackTimes(self._history, self._blocks, stack_kinds.stack_kinds(self._snapshot.stacks))

    def allocated_by(self, kind: int) -> np.ndarray:
        return self._stack_times.allocated_by == kind

    @cached_property
    def allocated_in_forward(self) -> np.ndarray:
        """Autocast's copies too: it copies inputs as well, and those are kept for backward."""
        return self.allocated_by(stack_kinds.FORWARD) | self.allocated_by(stack_kinds.AUTOCAST_COPY)

    def freed_by(self, kind: int) -> np.ndarray:
        return self._stack_times.freed_by == kind

    def held_while(self, *kinds: int) -> np.ndarray:
        """Another block was allocated by one of these kinds while it was allocated."""
        return np.logical_or.reduce([self._stack_times.between(kind) for kind in kinds])

    @cached_property
    def allocated_in_backward_thread(self) -> np.ndarray:
        """Allocated without a stack on a GPU: threads of the backward pass have no Python stacks."""
        if not self._stack_times.backward_has_no_stacks:
            return self._nothing
        return (self._blocks.stack == 0) & (self._blocks.start >= 0)

    @cached_property
    def allocated_in_backward(self) -> np.ndarray:
        return self.allocated_by(stack_kinds.BACKWARD) | self.allocated_in_backward_thread

    @cached_property
    def kept_after_backward(self) -> np.ndarray:
        """Not freed, or freed by ``zero_grad``, or still allocated while the optimizer ran."""
        return ~self.freed | self._outlived_backward

    @cached_property
    def _outlived_backward(self) -> np.ndarray:
        return self.freed_by(stack_kinds.ZERO_GRAD) | self.held_while(stack_kinds.OPTIMIZER)

    # -- sizes

    @cached_property
    def _as_large_as_a_workspace(self) -> np.ndarray:
        on_cpu = self._snapshot.meta.device == 'cpu'
        return self._nothing if on_cpu else np.isin(self._blocks.requested, _WORKSPACE_BYTES)

    @cached_property
    def is_workspace_of_a_call(self) -> np.ndarray:
        """As large as a workspace and freed by the next event, as is every block of that size: a weight would be kept.

        Torch 2.15 allocates a workspace for each call; before, it kept one.
        """
        same, blocks = self._as_large_as_a_workspace, self._blocks
        at_once = ~self.allocated_before & self.freed & (blocks.freed == blocks.start + 1)
        return same if at_once[same].all() else self._nothing

    @cached_property
    def has_workspace_size(self) -> np.ndarray:
        """As large as a workspace and not freed, of a size that no gradient or tensor of an optimizer has."""
        same = self._as_large_as_a_workspace
        of_weights = same & (self.allocated_by(stack_kinds.OPTIMIZER) | (self.allocated_in_backward & self.freed))
        if of_weights.any():
            return self._nothing
        kept = same & ~self.freed
        made = kept & (self.allocated_in_forward | self.allocated_in_backward)
        before = kept & self.allocated_before
        if made.any() and before.any():  # perhaps a gradient and its weight
            return self._nothing
        found = made | before
        return found if np.count_nonzero(found) <= _MOST_WORKSPACES else self._nothing

    @cached_property
    def _gradient(self) -> np.ndarray:
        """The gradients that are sure without a tensor: allocated in backward, and more than the end of it was seen."""
        return self.allocated_in_backward & self._outlived_backward & ~self.has_workspace_size

    @cached_property
    def by_gradient_sizes(self) -> GradientSizes:
        """Of a recording without tensors: blocks from before it that have the size of a gradient."""
        others = self._nothing if len(self._snapshot.tensors) else self.allocated_before & ~self.has_workspace_size
        kept = others & (self._blocks.freed == self._blocks.events)
        return match_gradient_sizes(self._blocks, self._gradient, kept, others & self.freed_by(stack_kinds.OPTIMIZER))

    @cached_property
    def ran_adam(self) -> bool:
        """An optimizer with two tensors for each parameter ran."""
        return any(frame.filename.endswith(_ADAM) for stack in self._snapshot.stacks for frame in stack)

    @cached_property
    def has_half_of_a_gradients_size(self) -> np.ndarray:
        return np.isin(self._blocks.requested * 2, np.unique(self._blocks.requested[self._gradient]))

    @cached_property
    def copied_with_bias(self) -> np.ndarray:
        kept = self.freed_by(stack_kinds.BACKWARD) | ~self.freed
        dropped = self.freed_by(stack_kinds.AUTOCAST_EXIT)
        return copies_of_weights(self._history, self._blocks, dropped, kept, self._gradient)

    # -- stacks of libraries

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
        without_stack = self.freed & (self._stack_of_free == 0) & self._stack_times.frees_have_stacks
        return without_stack | self.freed_by(stack_kinds.BACKWARD)

    @cached_property
    def outlived_its_phase(self) -> np.ndarray:
        """Still allocated when a later phase had begun, or while the optimizer ran."""
        if self._phase_rows is None:
            return self._outlived_backward
        last = len(self._snapshot.phases.batch) - 1
        allocated, freed = self._phase_rows
        end = np.where(self.freed, freed, last)
        return self._outlived_backward | ((allocated >= 0) & (end > allocated))


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
    # By stacks and sizes, whatever the phase.
    _Rule(WORKSPACE, 'by stack: allocated by cuBLAS for itself', lambda of: of.allocated_by(stack_kinds.WORKSPACE)),
    _Rule(WORKSPACE, "exactly as large as cuBLAS' workspace, not freed", lambda of: of.has_workspace_size),
    _Rule(
        WORKSPACE,
        "exactly as large as cuBLAS' workspace, freed by the next event",
        lambda of: of.is_workspace_of_a_call,
    ),
    _Rule(AUTOCAST_COPY, 'by stack: freed when autocast ended', lambda of: of.freed_by(stack_kinds.AUTOCAST_EXIT)),
    _Rule(
        AUTOCAST_COPY,
        "by stack: copied by autocast, half of a gradient's size",
        lambda of: of.allocated_by(stack_kinds.AUTOCAST_COPY) & of.has_half_of_a_gradients_size,
    ),
    _Rule(
        AUTOCAST_COPY,
        "half of a gradient's size, in a call that copied a bias for autocast",
        lambda of: of.copied_with_bias,
    ),
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
        lambda of: of.allocated_for(library_stacks.REDUCTION) & of.outlived_its_phase,
    ),
    _Rule(
        UNKNOWN,
        'by stack: made by FSDP2 as it reduced gradients, at the end of the recording',
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
    _Rule(
        OPTIMIZER_STATE,
        'by stack: allocated by an optimizer, kept over a batch',
        lambda of: of.allocated_by(stack_kinds.OPTIMIZER) & of.held_while(stack_kinds.FORWARD, stack_kinds.BACKWARD),
    ),
    _Rule(TEMPORARY, 'by stack: allocated by an optimizer, freed', lambda of: of.allocated_by(stack_kinds.OPTIMIZER)),
    _Rule(
        GRADIENT,
        'by stack: allocated in backward, kept after it',
        lambda of: of.allocated_by(stack_kinds.BACKWARD) & of.kept_after_backward,
    ),
    _Rule(
        GRADIENT,
        'no stack, as in backward threads: kept after it',
        lambda of: of.allocated_in_backward_thread & of.kept_after_backward,
    ),
    _Rule(
        UNKNOWN,
        'by stack: allocated in backward, freed in it or after it',
        lambda of: of.freed_by(NOT_KNOWN) & of.allocated_in_backward,
    ),
    _Rule(TEMPORARY, 'by stack: allocated in backward, freed', lambda of: of.allocated_by(stack_kinds.BACKWARD)),
    _Rule(TEMPORARY, 'no stack, as in backward threads: freed', lambda of: of.allocated_in_backward_thread),
    _Rule(
        ACTIVATION,
        'by stack: allocated in forward, freed in backward',
        lambda of: of.allocated_in_forward & of.freed_by(stack_kinds.BACKWARD),
    ),
    _Rule(
        ACTIVATION,
        'by stack: allocated in forward, held while backward ran',
        lambda of: of.allocated_in_forward & of.held_while(stack_kinds.BACKWARD) & of.freed,
    ),
    _Rule(
        ACTIVATION,
        'by stack: allocated in forward, not freed',
        lambda of: of.allocated_in_forward & ~of.freed,
    ),
    _Rule(
        UNKNOWN,
        'by stack: allocated in forward, freed in it or after it',
        lambda of: of.freed_by(NOT_KNOWN) & of.allocated_in_forward,
    ),
    _Rule(TEMPORARY, 'by stack: allocated in forward, freed elsewhere', lambda of: of.allocated_in_forward),
    _Rule(INPUT, 'by stack: allocated by a data loader', lambda of: of.allocated_by(stack_kinds.LOADER)),
    _Rule(PARAMETER, 'by stack: allocated when its module was made', lambda of: of.allocated_by(stack_kinds.MODULE)),
    # From before the recording, without a stack of their own.
    _Rule(
        GRADIENT,
        'from before the recording: freed by zero_grad',
        lambda of: of.allocated_before & of.freed_by(stack_kinds.ZERO_GRAD),
    ),
    _Rule(
        ACTIVATION,
        'from before the recording: freed in backward',
        lambda of: of.allocated_before & of.freed_by(stack_kinds.BACKWARD),
    ),
    _Rule(
        PARAMETER,
        'from before the recording: one block for each gradient of its size',
        lambda of: of.by_gradient_sizes.parameter,
    ),
    _Rule(
        PARAMETER,
        'from before the recording: one of several for each gradient of its size, it is not known which',
        lambda of: of.by_gradient_sizes.one_of_several,
    ),
    _Rule(
        OPTIMIZER_STATE,
        'from before the recording: freed by an optimizer, two or more for each gradient of its size',
        lambda of: of.by_gradient_sizes.replaced,
    ),
    _Rule(
        OPTIMIZER_STATE,
        'from before the recording: two more for each gradient of its size, and Adam ran',
        lambda of: of.by_gradient_sizes.state & (of.ran_adam | of.by_gradient_sizes.steps),
    ),
    _Rule(
        UNKNOWN,
        "from before the recording: of a gradient's size, such as optimizer state",
        lambda of: of.by_gradient_sizes.other,
    ),
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
