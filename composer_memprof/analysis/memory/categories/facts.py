"""The evidence about blocks, on which the rules for categories decide: tensors, lifetimes, phases, stacks and sizes."""

from __future__ import annotations

import numpy as np

from composer_memprof.analysis.computed_once import computed_once
from composer_memprof.analysis.memory.blocks import library_stacks, stack_kinds
from composer_memprof.analysis.memory.blocks.lifetimes import Lifetimes
from composer_memprof.analysis.memory.blocks.phases import begins_between_batches, rows_at
from composer_memprof.analysis.memory.blocks.stack_times import StackTimes
from composer_memprof.analysis.memory.categories.autocast_copies import copies_of_weights
from composer_memprof.analysis.memory.categories.gradient_sizes import GradientSizes, match_gradient_sizes
from composer_memprof.analysis.memory.categories.tensors_in_blocks import tensors_in_blocks
from composer_memprof.analysis.snapshot.model import DeviceHistory, Snapshot
from composer_memprof.vocabulary import PARAMETER, TENSOR_CATEGORIES, UNSHARDED_PARAMETER

#: Bytes of cuBLAS' workspace in torch, but for GPUs whose workspace is a power of two, as other blocks are.
_WORKSPACE_BYTES = (8_519_680,)
#: Of one device: one for each thread that calls cuBLAS, that of forward and that of backward.
_MOST_WORKSPACES = 2
#: Optimizers of torch with two tensors of its size for each parameter.
_ADAM = tuple(f'/torch/optim/{name}.py' for name in ('adam', 'adamw', 'adamax', 'nadam', 'radam'))


class BlockFacts:
    """What the rules ask about the blocks of one device: bool arrays, one row for each block.

    Args:
        snapshot (Snapshot): its phases, stacks and tensors.
        history (DeviceHistory): the events of the device.
        blocks (Lifetimes): of these events.
    """

    def __init__(self, snapshot: Snapshot, history: DeviceHistory, blocks: Lifetimes) -> None:
        self._snapshot, self._history, self._blocks = snapshot, history, blocks
        self.tensor = tensors_in_blocks(history, blocks, snapshot.tensors)

    @computed_once
    def _nothing(self) -> np.ndarray:
        return np.zeros(len(self._blocks), dtype=bool)

    # -- tensors and lifetimes

    @computed_once
    def _tensor_category(self) -> np.ndarray:
        return np.append(self._snapshot.tensors.category, np.int8(-1))[self.tensor]

    def holds_tensor(self, category: str) -> np.ndarray:
        return self._tensor_category == TENSOR_CATEGORIES.index(category)

    @computed_once
    def allocated_before(self) -> np.ndarray:
        """Allocated before the recording began."""
        return self._blocks.start < 0

    @computed_once
    def freed(self) -> np.ndarray:
        """Freed within the recording."""
        return (self._blocks.freed >= 0) & (self._blocks.freed < self._blocks.events)

    # -- phases

    @computed_once
    def _phase_rows(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The rows of the phases in which each block was allocated and freed: -1 before the first, or not freed."""
        rows = rows_at(self._history, self._snapshot.phases)
        if rows is None or not len(rows):
            return None
        rows = np.append(rows, -1)
        start, freed = self._blocks.start, self._blocks.freed
        return np.where(start >= 0, rows[start], -1), np.where(self.freed, rows[np.where(self.freed, freed, -1)], -1)

    @computed_once
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

    @computed_once
    def allocated_in_last_batch(self) -> np.ndarray:
        if self._phase_rows is None:
            return self._nothing
        batch = self._snapshot.phases.batch
        return batch[np.maximum(self._phase_rows[0], 0)] == batch[-1]

    @computed_once
    def is_of_failed_backward(self) -> np.ndarray:
        """Allocated in the phase in which the training failed, not freed, and of no parameter's size."""
        snapshot = self._snapshot
        failed = bool(snapshot.error) or snapshot.oom is not None
        of_parameters = [TENSOR_CATEGORIES.index(category) for category in (PARAMETER, UNSHARDED_PARAMETER)]
        sizes = snapshot.tensors.size[np.isin(snapshot.tensors.category, of_parameters)]
        if self._phase_rows is None or not failed or not len(sizes):
            return self._nothing
        in_last = self._phase_rows[0] == len(snapshot.phases) - 1
        return in_last & ~self.freed & ~np.isin(self._blocks.requested, sizes)

    @computed_once
    def outlived_its_batch(self) -> np.ndarray:
        """Allocated in a batch, and freed in a later one or not at all."""
        if self._phase_rows is None:
            return self._nothing
        batch = self._snapshot.phases.batch
        allocated, freed = self._phase_rows
        return (allocated >= 0) & (batch[np.maximum(allocated, 0)] < batch[freed])  # the last row is the end

    @computed_once
    def stayed_from_before(self) -> np.ndarray:
        """Allocated in a batch that had ended before the recording began, and not freed."""
        if not begins_between_batches(self._history, self._snapshot.phases):
            return self._nothing
        return self.allocated_before & ~self.freed

    # -- stacks

    @computed_once
    def _stack_times(self) -> StackTimes:
        return StackTimes(self._history, self._blocks, stack_kinds.stack_kinds(self._snapshot.stacks))

    def allocated_by(self, kind: int) -> np.ndarray:
        return self._stack_times.allocated_by == kind

    @computed_once
    def allocated_in_forward(self) -> np.ndarray:
        """Autocast's copies too: it copies inputs as well, and those are kept for backward."""
        return self.allocated_by(stack_kinds.FORWARD) | self.allocated_by(stack_kinds.AUTOCAST_COPY)

    def freed_by(self, kind: int) -> np.ndarray:
        return self._stack_times.freed_by == kind

    def held_while(self, *kinds: int) -> np.ndarray:
        """Another block was allocated by one of these kinds while it was allocated."""
        return np.logical_or.reduce([self._stack_times.between(kind) for kind in kinds])

    @computed_once
    def allocated_in_backward_thread(self) -> np.ndarray:
        """Allocated without a stack on a GPU: threads of the backward pass have no Python stacks."""
        if not self._stack_times.backward_has_no_stacks:
            return self._nothing
        return (self._blocks.stack == 0) & (self._blocks.start >= 0)

    @computed_once
    def allocated_in_backward(self) -> np.ndarray:
        return self.allocated_by(stack_kinds.BACKWARD) | self.allocated_in_backward_thread

    @computed_once
    def kept_after_backward(self) -> np.ndarray:
        """Not freed, or freed by ``zero_grad``, or still allocated while the optimizer ran."""
        return ~self.freed | self._outlived_backward

    @computed_once
    def _outlived_backward(self) -> np.ndarray:
        return self.freed_by(stack_kinds.ZERO_GRAD) | self.held_while(stack_kinds.OPTIMIZER)

    # -- sizes

    @computed_once
    def _as_large_as_a_workspace(self) -> np.ndarray:
        on_cpu = self._snapshot.meta.device == 'cpu'
        return self._nothing if on_cpu else np.isin(self._blocks.requested, _WORKSPACE_BYTES)

    @computed_once
    def is_workspace_of_a_call(self) -> np.ndarray:
        """As large as a workspace and freed by the next event, as is every block of that size: a weight would be kept.

        Torch 2.15 allocates a workspace for each call; before, it kept one.
        """
        same, blocks = self._as_large_as_a_workspace, self._blocks
        at_once = ~self.allocated_before & self.freed & (blocks.freed == blocks.start + 1)
        return same if at_once[same].all() else self._nothing

    @computed_once
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

    @computed_once
    def _gradient(self) -> np.ndarray:
        """The gradients that are sure without a tensor: allocated in backward, and more than the end of it was seen."""
        return self.allocated_in_backward & self._outlived_backward & ~self.has_workspace_size

    @computed_once
    def by_gradient_sizes(self) -> GradientSizes:
        """Of a recording without tensors: blocks from before it that have the size of a gradient."""
        others = self._nothing if len(self._snapshot.tensors) else self.allocated_before & ~self.has_workspace_size
        kept = others & (self._blocks.freed == self._blocks.events)
        return match_gradient_sizes(self._blocks, self._gradient, kept, others & self.freed_by(stack_kinds.OPTIMIZER))

    @computed_once
    def ran_adam(self) -> bool:
        """An optimizer with two tensors for each parameter ran."""
        return any(frame.filename.endswith(_ADAM) for stack in self._snapshot.stacks for frame in stack)

    @computed_once
    def has_half_of_a_gradients_size(self) -> np.ndarray:
        return np.isin(self._blocks.requested * 2, np.unique(self._blocks.requested[self._gradient]))

    @computed_once
    def copied_with_bias(self) -> np.ndarray:
        kept = self.freed_by(stack_kinds.BACKWARD) | ~self.freed
        dropped = self.freed_by(stack_kinds.AUTOCAST_EXIT)
        return copies_of_weights(self._history, self._blocks, dropped, kept, self._gradient)

    # -- stacks of libraries

    @computed_once
    def _purpose_of_stack(self) -> np.ndarray:
        return library_stacks.purposes(self._snapshot.stacks)

    @computed_once
    def _stack_of_free(self) -> np.ndarray:
        """0, the empty stack, for a block that was not freed."""
        found = np.zeros(len(self._blocks), dtype=np.int32)
        found[self.freed] = self._history.stack[self._blocks.freed[self.freed]]
        return found

    def allocated_for(self, purpose: int) -> np.ndarray:
        return self._purpose_of_stack[self._blocks.stack] == purpose

    def freed_for(self, purpose: int) -> np.ndarray:
        return self._purpose_of_stack[self._stack_of_free] == purpose

    @computed_once
    def freed_in_backward(self) -> np.ndarray:
        """Freed by the backward pass, or without a stack, as threads of the backward pass and of collectives do."""
        without_stack = self.freed & (self._stack_of_free == 0) & self._stack_times.frees_have_stacks
        return without_stack | self.freed_by(stack_kinds.BACKWARD)

    @computed_once
    def outlived_its_phase(self) -> np.ndarray:
        """Still allocated when a later phase had begun, or while the optimizer ran."""
        if self._phase_rows is None:
            return self._outlived_backward
        last = len(self._snapshot.phases.batch) - 1
        allocated, freed = self._phase_rows
        end = np.where(self.freed, freed, last)
        return self._outlived_backward | ((allocated >= 0) & (end > allocated))
