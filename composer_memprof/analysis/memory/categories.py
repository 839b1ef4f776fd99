"""What each block was for, and the rule that decided it.

The rules are tried in this order. What the recorder saw: a block at whose address a tensor was seen alive is what
that tensor was. When it lived: in which phase of the training it was allocated, and in which freed. Who asked: the
innermost frame that tells. A snapshot of another program has no phases and no tensors, so the last rule is all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.memory.lifetimes import Lifetimes
from composer_memprof.analysis.memory.phases import rows_at
from composer_memprof.analysis.memory.stack_kinds import (
    BACKWARD,
    FORWARD,
    LOADER,
    MODULE,
    OPTIMIZER,
    ZERO_GRAD,
    stack_kinds,
)
from composer_memprof.analysis.snapshot.model import (
    ALLOC,
    FREE_COMPLETED,
    TENSOR_CATEGORIES,
    DeviceHistory,
    Phases,
    Snapshot,
    Stack,
    Tensors,
)

CATEGORIES = ('parameter', 'buffer', 'gradient', 'optimizer_state', 'activation', 'input', 'temporary', 'unknown')
PARAMETER, BUFFER, GRADIENT, OPTIMIZER_STATE, ACTIVATION, INPUT, TEMPORARY, UNKNOWN = range(8)

#: In the order of their codes; the first few are what no rule reaches.
RULES = (
    'no rule applies',
    'allocated before the recording began',
    'seen as that tensor',
    'allocated and freed in the same phase',
    'allocated while a batch was loaded',
    'allocated in forward, freed later',
    'allocated in forward, still there at the end of its batch',
    'allocated in forward, kept past its batch',
    'allocated in backward, kept after it',
    'allocated by the optimizer, kept',
    'allocated by the optimizer, freed later',
    'by its stack: made in an optimizer, kept',
    'by its stack: made in an optimizer, freed',
    'by its stack: made in backward, kept or freed by zero_grad',
    'by its stack: made in backward, freed',
    'no frames, as on the threads of backward: kept or freed by zero_grad',
    'no frames, as on the threads of backward: freed',
    'by its stack: made in forward, freed in backward',
    'by its stack: made in forward, kept',
    'by its stack: made in forward, freed elsewhere',
    'by its stack: made by a data loader',
    'by its stack: made with its module',
)
_RULE = {rule: code for code, rule in enumerate(RULES)}
#: Moments at which tensors are looked up; a recorder looks at the start and the end of a window.
_MOST_MOMENTS = 64

_Decide = Callable[[np.ndarray, int, str], None]


@dataclass(frozen=True)
class Categories:
    """For each block: int8 ``category`` into ``CATEGORIES``, int8 ``rule`` into ``RULES``, and int32 ``tensor``, the
    row of the snapshot's ``tensors`` that it was seen as, or -1.
    """

    category: np.ndarray
    rule: np.ndarray
    tensor: np.ndarray


def categories(snapshot: Snapshot, history: DeviceHistory, blocks: Lifetimes) -> Categories:
    """What each block was for."""
    count = len(blocks)
    found = Categories(
        np.full(count, UNKNOWN, dtype=np.int8), np.zeros(count, dtype=np.int8), _seen(history, blocks, snapshot.tensors)
    )
    undecided = np.ones(count, dtype=bool)

    def decide(where: np.ndarray, category: int, rule: str) -> None:
        chosen = undecided & where
        found.category[chosen] = category
        found.rule[chosen] = _RULE[rule]
        undecided[chosen] = False

    if len(snapshot.tensors):
        seen_as = np.where(found.tensor >= 0, snapshot.tensors.category[found.tensor], -1)
        for code, name in enumerate(TENSOR_CATEGORIES):
            decide(seen_as == code, CATEGORIES.index(name), 'seen as that tensor')
    _by_phases(history, blocks, snapshot.phases, decide)
    _by_stacks(history, blocks, snapshot.stacks, decide)
    decide(blocks.start < 0, UNKNOWN, 'allocated before the recording began')
    return found


def _seen(history: DeviceHistory, blocks: Lifetimes, tensors: Tensors) -> np.ndarray:
    """For each block the last row of ``tensors`` that lay in it while it was active, or -1."""
    found = np.full(len(blocks), -1, dtype=np.int32)
    if not len(tensors):
        return found
    if history.has_times:
        counts = np.searchsorted(history.time_us, tensors.time_us, side='right')
    else:
        counts = np.full(len(tensors), len(history.action))
    moments = np.unique(counts)
    if len(moments) > _MOST_MOMENTS:
        moments = moments[np.linspace(0, len(moments) - 1, _MOST_MOMENTS).astype(int)]
    for moment in moments.tolist():
        live = blocks.active_after(moment)
        live = live[np.argsort(blocks.address[live], kind='stable')]
        if not len(live):
            continue
        rows = np.flatnonzero(counts == moment)
        place = np.searchsorted(blocks.address[live], tensors.address[rows], side='right') - 1
        block = live[np.maximum(place, 0)]
        inside = (place >= 0) & (
            tensors.address[rows] < blocks.address[block] + np.maximum(blocks.size[block], 1).astype(np.uint64)
        )
        found[block[inside]] = rows[inside]
    return found


def _by_phases(history: DeviceHistory, blocks: Lifetimes, phases: Phases, decide: _Decide) -> None:
    rows = rows_at(history, phases)
    if rows is None or not len(rows):
        return
    last = len(phases)
    row_after = np.append(rows, last)
    began = np.where(blocks.start >= 0, row_after[blocks.start], -1)
    ended = np.where(blocks.freed < blocks.events, row_after[blocks.freed], last)
    names = np.append(phases.name, -1)
    code = {name: number for number, name in enumerate(phases.names)}
    batches = np.append(phases.batch, phases.batch[-1])

    def began_in(name: str) -> np.ndarray:
        return (began >= 0) & (names[began] == code.get(name, -2))

    kept = ended == last
    decide((began >= 0) & (began == ended), TEMPORARY, 'allocated and freed in the same phase')
    decide(began_in('dataloader'), INPUT, 'allocated while a batch was loaded')
    forward = began_in('forward')
    decide(forward & ~kept, ACTIVATION, 'allocated in forward, freed later')
    same_batch = batches[np.maximum(began, 0)] == phases.batch[-1]
    decide(forward & same_batch, ACTIVATION, 'allocated in forward, still there at the end of its batch')
    decide(forward, UNKNOWN, 'allocated in forward, kept past its batch')
    decide(began_in('backward'), GRADIENT, 'allocated in backward, kept after it')
    optimizer = began_in('optimizer')
    decide(optimizer & kept, OPTIMIZER_STATE, 'allocated by the optimizer, kept')
    decide(optimizer, TEMPORARY, 'allocated by the optimizer, freed later')


def _by_stacks(history: DeviceHistory, blocks: Lifetimes, stacks: Sequence[Stack], decide: _Decide) -> None:
    of_stack = stack_kinds(stacks)
    made = of_stack[blocks.stack]
    is_freed = (blocks.freed >= 0) & (blocks.freed < blocks.events)
    freed = np.zeros(len(blocks), dtype=np.int8)
    freed_by = history.stack[blocks.freed[is_freed]]
    freed[is_freed] = np.where((freed_by == 0) & _backward_has_no_frames(history), BACKWARD, of_stack[freed_by])
    decide((made == OPTIMIZER) & ~is_freed, OPTIMIZER_STATE, 'by its stack: made in an optimizer, kept')
    decide(made == OPTIMIZER, TEMPORARY, 'by its stack: made in an optimizer, freed')
    cleared = ~is_freed | (freed == ZERO_GRAD)
    decide((made == BACKWARD) & cleared, GRADIENT, 'by its stack: made in backward, kept or freed by zero_grad')
    decide(made == BACKWARD, TEMPORARY, 'by its stack: made in backward, freed')
    threads = (blocks.stack == 0) & (blocks.start >= 0) & _backward_has_no_frames(history)
    decide(threads & cleared, GRADIENT, 'no frames, as on the threads of backward: kept or freed by zero_grad')
    decide(threads, TEMPORARY, 'no frames, as on the threads of backward: freed')
    decide((made == FORWARD) & (freed == BACKWARD), ACTIVATION, 'by its stack: made in forward, freed in backward')
    decide((made == FORWARD) & ~is_freed, ACTIVATION, 'by its stack: made in forward, kept')
    decide(made == FORWARD, TEMPORARY, 'by its stack: made in forward, freed elsewhere')
    decide(made == LOADER, INPUT, 'by its stack: made by a data loader')
    decide(made == MODULE, PARAMETER, 'by its stack: made with its module')


def _backward_has_no_frames(history: DeviceHistory) -> bool:
    """Whether Python stacks alone were recorded on a GPU, whose backward runs on threads without any."""
    allocations = history.stack[history.action == ALLOC]
    return bool(np.any(history.action > FREE_COMPLETED) and np.any(allocations > 0) and np.any(allocations == 0))
