"""The rules that decide a block's category.

:data:`RULES_IN_ORDER` is the one table. The rules are tried in its order, and the first that applies decides. Rules by
tensors come first: a recorder saw a tensor at the block's address. Rules by phases use the phases in which the block was
allocated and freed. Rules by stacks use the stacks that allocated and freed it. A snapshot of another program has no
tensors and no phases, so only rules by stacks apply, and for blocks from before the recording the sizes of gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.memory.blocks import library_stacks, stack_kinds
from composer_memprof.analysis.memory.blocks.stack_times import NOT_KNOWN
from composer_memprof.analysis.memory.categories.facts import BlockFacts
from composer_memprof.vocabulary import (
    ACTIVATION,
    ALL_GATHER,
    AUTOCAST_COPY,
    BACKWARD,
    DATALOADER,
    FORWARDS,
    GRADIENT,
    INPUT,
    KEPT,
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


@dataclass(frozen=True)
class _Rule:
    """Blocks for which ``applies`` is true get ``category``; ``reason`` tells people why."""

    category: str
    reason: str
    applies: Callable[[BlockFacts], np.ndarray]


def _holds_tensor(category: str) -> _Rule:
    return _Rule(category, 'a tensor of this category was seen in it', lambda of: of.holds_tensor(category))


RULES_IN_ORDER = (
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
    _Rule(KEPT, 'allocated in forward, kept after its batch', lambda of: of.allocated_in(*FORWARDS)),
    _Rule(
        TEMPORARY,
        "allocated in the backward that failed, of no parameter's size",
        lambda of: of.allocated_in(BACKWARD) & of.is_of_failed_backward,
    ),
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
        KEPT,
        'by stack: allocated in forward before the recording, kept after its batch',
        lambda of: of.allocated_in_forward & of.stayed_from_before,
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
    _Rule(KEPT, 'allocated between the phases, kept after its batch', lambda of: of.outlived_its_batch),
    _Rule(UNKNOWN, 'allocated before the recording began', lambda of: of.allocated_before),
)
#: The code of a block that no rule decided.
NO_RULE = len(RULES_IN_ORDER)
#: The reasons of the rules, for people, in the order of their codes.
RULES = (*(rule.reason for rule in RULES_IN_ORDER), 'no rule applies')
