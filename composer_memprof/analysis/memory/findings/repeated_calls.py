"""The call that a training repeats for each of its layers, and the activations that lie inside of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.frames import in_package, is_of_model
from composer_memprof.analysis.memory.categories.categories import CATEGORIES
from composer_memprof.analysis.memory.findings.attribution import Attribution
from composer_memprof.analysis.module_names import layer_name
from composer_memprof.analysis.snapshot.model import Frame, Snapshot
from composer_memprof.vocabulary import ACTIVATION

#: A call is repeated if nearly all bytes inside of it are of stacks that occur at least this often.
_FEWEST, _NEARLY_ALL = 2, 0.99
#: Calls that free at least this share of the largest are equal; the innermost of equal calls is named.
_AS_MUCH = 0.98
#: An outer line may allocate a little more, after the layers.
_NEARLY_AS_MUCH = 0.85
#: Frames of torch that call each layer in a loop.
_LOOPS = 'torch/nn/modules/container.py'
#: Packages whose frames call the model: what calls them in turn, such as ``trainer.fit()``, is no part of it.
_TRAINERS = ('composer/', 'lightning/', 'pytorch_lightning/', 'accelerate/')


@dataclass(frozen=True)
class RepeatedCall:
    """A line that calls one layer after the other, and the memory that autograd keeps for these calls.

    Args:
        frames (list[Frame]): the line of the model that calls the layers; torch's own if no other is known.
        modules (str): the layers that are called, such as ``'blocks.*'``; ``''`` if they are not known.
        calls (int): how often it ran.
        bytes (int): of activations that were allocated inside of the calls and are allocated now.
        results (int): the part of it that is the calls' last allocations: about what is left if each is checkpointed.
        largest (int): the bytes inside of the largest call, without its last allocation.
    """

    frames: list[Frame]
    modules: str
    calls: int
    bytes: int
    results: int
    largest: int

    @property
    def name(self) -> str:
        """The layers, if they are known, and the line that calls them."""
        line = ', called from '.join(frame.short() for frame in self.frames)
        return f'{self.modules}, called in {line}' if self.modules else f'the call in {line}'

    @property
    def frees(self) -> int:
        """About the bytes that checkpointing each call would free: while one is computed again, its own are there."""
        return self.bytes - self.results - self.largest


class _Group(NamedTuple):
    """The blocks of one stack, by their places in the order of time, and their bytes."""

    blocks: np.ndarray
    bytes: int


def repeated_call(snapshot: Snapshot, attribution: Attribution, live: np.ndarray) -> Optional[RepeatedCall]:
    """The repeated call whose checkpointing would free most of the ``live`` blocks; None if none would free any."""
    blocks = attribution.blocks
    kept = live[attribution.categories.category[live] == CATEGORIES.index(ACTIVATION)]
    kept = kept[np.argsort(blocks.start[kept], kind='stable')]
    size, stack_of = blocks.size[kept], blocks.stack[kept]
    # Below, the index of a block is its place in the order of time.
    codes: dict[Frame, int] = {}  # numbers are hashed faster
    inside: defaultdict[tuple[int, ...], list[_Group]] = defaultdict(list)
    for stack in np.unique(stack_of[stack_of > 0]).tolist():
        # The C++ frames between the same Python frames may differ.
        frames = tuple(frame for frame in snapshot.stacks[stack] if frame.filename.endswith('.py'))
        of_stack = np.flatnonzero(stack_of == stack)
        same = _Group(of_stack, int(size[of_stack].sum()))
        trainer = next(
            (place for place, frame in enumerate(frames) if in_package(frame.filename).startswith(_TRAINERS)), None
        )
        context = tuple(codes.setdefault(frame, len(codes)) for frame in frames)
        for place, frame in enumerate(frames[:trainer]):
            if place and (is_of_model(frame.filename) or in_package(frame.filename) == _LOOPS):
                inside[context[place:]].append(same)
    frame_of = list(codes)
    modules = attribution.module[kept]
    found = [
        (len(context), _call([frame_of[code] for code in context], groups, size, modules, attribution.modules))
        for context, groups in inside.items()
        if len(groups) > 1  # what one stack allocates is all that its call leaves: checkpointing it frees nothing
    ]
    calls = [(depth, call) for depth, call in found if call is not None]
    if not calls:
        return None
    most = max((call for _, call in calls), key=lambda call: call.frees)
    as_much = [
        (depth, call) for depth, call in calls if call.frees >= _AS_MUCH * most.frees or _same_layers(call, most)
    ]
    return max(as_much, key=lambda found: found[0])[1]


def _same_layers(call: RepeatedCall, other: RepeatedCall) -> bool:
    """True if ``call`` leads to the layers that ``other`` leads to, and not to a part of each."""
    same = bool(call.modules) and (call.modules, call.calls) == (other.modules, other.calls)
    return same and call.frees >= _NEARLY_AS_MUCH * other.frees


def _call(
    context: Sequence[Frame], groups: list[_Group], size: np.ndarray, modules: np.ndarray, names: Sequence[str]
) -> Optional[RepeatedCall]:
    """The call in ``context`` that allocated ``groups``; None if it is not repeated, or checkpointing it would free nothing.

    Args:
        context: the frames of the call and around it.
        groups: of the stacks inside of it.
        size: bytes of each block.
        modules: for each block an index into ``names``.
        names: of all modules.
    """
    total = sum(group.bytes for group in groups)
    repeated = [group for group in groups if len(group.blocks) >= _FEWEST]
    if not repeated or sum(group.bytes for group in repeated) < _NEARLY_ALL * total:
        return None
    calls = min(len(group.blocks) for group in repeated)
    # The stack that allocates first marks where each call begins. It may do so more than once in a call, and backward
    # may have freed what the last call allocated.
    first = min((group.blocks for group in repeated), key=lambda blocks: int(blocks[0]))
    begins = first[:: max(round(len(first) / calls), 1)]
    order = np.sort(np.concatenate([group.blocks for group in groups]))
    starts = np.searchsorted(order, begins)
    starts[0] = 0
    of_call = np.add.reduceat(size[order], starts)
    results = size[order[np.append(starts[1:], len(order)) - 1]]
    kept, largest = int(results.sum()), int((of_call - results).max())
    if total <= kept + largest:
        return None
    inside = {names[code] for code in set(modules[order].tolist())}
    return RepeatedCall(_shown(context), _layers(inside, len(begins)), len(begins), total, kept, largest)


def _shown(context: Sequence[Frame]) -> list[Frame]:
    return next(([frame] for frame in context if is_of_model(frame.filename)), [context[0]])


def _layers(names: Set[str], calls: int) -> str:
    """The name of the modules of which each call ran one: the outermost layers of which there are ``calls``."""
    outermost = {name[: name.index('*') + 1] if '*' in name else name for name in set(names)}
    if len(outermost) == 1 and min(outermost).endswith('*'):
        return min(outermost)  # equal layers have one name where modules are known by their code alone
    found: dict[str, set[str]] = {}
    for name in names:
        parts = name.split('.')
        for end, part in enumerate(parts, 1):
            if part.isdigit():
                layer = '.'.join(parts[:end])
                found.setdefault(layer_name(layer), set()).add(layer)
    return next((name for name in sorted(found, key=len) if len(found[name]) == calls), '')
