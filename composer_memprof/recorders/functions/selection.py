"""Which functions are read, by which sources, and in which of their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from composer_memprof.messages import check_one_of, must_be

HISTORY = 'cuda_allocator_history'
#: The kinds of sources, as finetuning-scheduler names them, and saved tensors.
KINDS = ('cpu', 'cuda', HISTORY, 'fsdp', 'saved_tensors')
#: Values from hooks around the forward pass: for each function that one of the first three kinds reads.
HOOKS = 'memory_hooks'
_KINDS_WITH_HOOKS = frozenset(KINDS[:3])
#: The key in ``collect_funcs`` for functions of every kind.
DEFAULT = 'default'
TRAINING_STEP = 'training_step'

#: Function names.
Functions = Union[Sequence[str], set[str]]


@dataclass(frozen=True)
class Selection:
    """Which functions are read, by kind of source, and which of their calls.

    Args:
        functions (Mapping): names by kind.
        marked (bool): True if functions marked by the user are read too, by every kind.
        warmup (int): number of first calls of each function that are not read.
        last (int, optional): the last call of each function that is read. None: no last call.
        retain (frozenset): hooks are removed once the last call of each of these functions was read.
        own (frozenset): kinds with function names of their own.
    """

    functions: Mapping[str, frozenset[str]]
    marked: bool = True
    warmup: int = 0
    last: Optional[int] = None
    retain: frozenset[str] = frozenset({TRAINING_STEP})
    own: frozenset[str] = frozenset()

    def includes(self, iteration: int) -> bool:
        """True if a function's call of this number is read."""
        return self.warmup < iteration and (self.last is None or iteration <= self.last)

    def is_last(self, iteration: int) -> bool:
        return iteration == self.last

    def is_over(self, iteration: int) -> bool:
        """True if no call after this one is read."""
        return self.last is not None and iteration >= self.last

    def kinds_of(self, function: str, marked: bool) -> frozenset[str]:
        """The kinds of sources that read the function; ``marked``: True if the user marked it."""
        if marked and self.marked:
            return frozenset((*KINDS, HOOKS))
        kinds = frozenset(kind for kind, names in self.functions.items() if function in names)
        return kinds | {HOOKS} if kinds & _KINDS_WITH_HOOKS else kinds

    @property
    def names(self) -> frozenset[str]:
        """All functions that were selected by name."""
        return frozenset().union(*self.functions.values())


def select_calls(schedule: Any, warmup_iters: Optional[int], max_iter: Optional[int]) -> tuple[Any, int, Optional[int]]:
    """Check the parameters that select calls. Returns the schedule, the number of warm-up calls, and the last call.

    ``schedule`` may be finetuning-scheduler's ``{warmup_iters: 1, max_iter: 2}``.

    Raises:
        ValueError: if a value is not allowed, or two values contradict each other.
    """
    if isinstance(schedule, Mapping) and schedule and set(schedule) <= {'warmup_iters', 'max_iter'}:
        if warmup_iters is not None or max_iter is not None:
            raise ValueError('warmup_iters or max_iter is given both in schedule and as a parameter; give it once')
        warmup_iters, max_iter, schedule = schedule.get('warmup_iters'), schedule.get('max_iter'), None
    if schedule is not None:
        if warmup_iters is not None or max_iter is not None:
            raise ValueError('schedule, and warmup_iters or max_iter, both select calls; give one of them')
        return schedule, 0, None
    warmup = 1 if warmup_iters is None else warmup_iters
    if not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0:
        raise must_be('warmup_iters', 'a number of calls, at least 0', warmup)
    last = warmup + 1 if max_iter is None else max_iter
    if not isinstance(last, int) or isinstance(last, bool):
        raise must_be('max_iter', 'a number of calls', last)
    if last <= warmup:
        raise ValueError(f'max_iter must be above warmup_iters={warmup}, not {last}')
    return None, warmup, last


def select_functions(
    collect_funcs: Union[Mapping[str, Functions], Functions, None],
    retain: Optional[Functions],
    default: Sequence[str],
    warmup: int = 0,
    last: Optional[int] = None,
) -> Selection:
    """Check the parameters that select functions. ``default`` are the functions read without ``collect_funcs``.

    Raises:
        ValueError: naming the parameter, the value and what is allowed.
    """
    given = {DEFAULT: default} if collect_funcs is None else collect_funcs
    by_kind = given if isinstance(given, Mapping) else {DEFAULT: given}
    for kind in by_kind:
        check_one_of('collect_funcs: kind', kind, (DEFAULT, *KINDS))
    every_kind = _names(by_kind.get(DEFAULT), f'collect_funcs.{DEFAULT}')
    own = {kind: _names(by_kind.get(kind), f'collect_funcs.{kind}') for kind in KINDS}
    functions = {kind: every_kind | own[kind] for kind in KINDS}
    named = frozenset().union(*functions.values())
    if not named and collect_funcs is not None:
        raise ValueError(f'collect_funcs={collect_funcs!r} names no function, so nothing would be read')
    retained = named if retain is None else _names(retain, 'retain_hooks_for_funcs')
    for name in sorted(retained - named) if collect_funcs is not None else ():
        check_one_of('retain_hooks_for_funcs: function', name, sorted(named))
    return Selection(functions, collect_funcs is None, warmup, last, retained, frozenset(k for k in KINDS if own[k]))


def _names(names: Optional[Iterable[str]], parameter: str) -> frozenset[str]:
    if names is None:
        return frozenset()
    if isinstance(names, str) or not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise must_be(parameter, 'a list of function names', names)
    return frozenset(names)
