"""Which functions' memory is read, from which sources, and at which of their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from composer_memprof.messages import allowed_are

#: Where memory is read; as finetuning-scheduler names them, and saved tensors.
KINDS = ('cpu', 'cuda', 'cuda_allocator_history', 'fsdp', 'saved_tensors')
#: What hooks around the forward pass have noted; of every function that is read at its start and end.
HOOKS = 'memory_hooks'
_WITH_HOOKS = frozenset(KINDS[:3])
#: In place of a kind: functions of every kind.
DEFAULT = 'default'
BATCH = 'training_step'

Functions = Union[Sequence[str], set[str]]


@dataclass(frozen=True)
class Collection:
    """Which functions, by kind, and which of their calls.

    Args:
        functions (Mapping): names by kind.
        marked (bool): those too that the user has marked, for every kind.
        warmup (int): so many calls of each function are left out.
        last (int, optional): the last call of each that is read. None: no end.
        retain (frozenset): once each of these has come to its last call, hooks are taken out.
        own (frozenset): kinds that functions were named for, beside those of every kind.
    """

    functions: Mapping[str, frozenset[str]]
    marked: bool = True
    warmup: int = 0
    last: Optional[int] = None
    retain: frozenset[str] = frozenset({BATCH})
    own: frozenset[str] = frozenset()

    def wants(self, iteration: int) -> bool:
        return self.warmup < iteration and (self.last is None or iteration <= self.last)

    def is_last(self, iteration: int) -> bool:
        return iteration == self.last

    def kinds_of(self, function: str, marked: bool) -> frozenset[str]:
        if marked and self.marked:
            return frozenset((*KINDS, HOOKS))
        kinds = frozenset(kind for kind, names in self.functions.items() if function in names)
        return kinds | {HOOKS} if kinds & _WITH_HOOKS else kinds

    @property
    def named(self) -> frozenset[str]:
        return frozenset().union(*self.functions.values())


def calls_of(schedule: Any, warmup_iters: Optional[int], max_iter: Optional[int]) -> tuple[Any, int, Optional[int]]:
    """Settle the parameters that say which calls are read: the schedule, how many are left out, and the last.

    ``{warmup_iters: 1, max_iter: 2}`` is a schedule too, as finetuning-scheduler has it.

    Raises:
        ValueError: if one can't be read, or two of them say different things.
    """
    if isinstance(schedule, Mapping) and schedule and set(schedule) <= {'warmup_iters', 'max_iter'}:
        if warmup_iters is not None or max_iter is not None:
            raise ValueError('warmup_iters and max_iter are given twice, in schedule too; give them once')
        warmup_iters, max_iter, schedule = schedule.get('warmup_iters'), schedule.get('max_iter'), None
    if schedule is not None:
        if warmup_iters is not None or max_iter is not None:
            raise ValueError('schedule and warmup_iters or max_iter both say which calls are read; give one of them')
        return schedule, 0, None
    warmup = 1 if warmup_iters is None else warmup_iters
    if not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0:
        raise ValueError(f'warmup_iters={warmup!r} is not allowed; it is a number of calls, from 0')
    last = warmup + 1 if max_iter is None else max_iter
    if not isinstance(last, int) or isinstance(last, bool):
        raise ValueError(f'max_iter={max_iter!r} is not allowed; it is a number of calls')
    if last <= warmup:
        raise ValueError(f'max_iter={last} would read nothing; it is above warmup_iters={warmup}')
    return None, warmup, last


def collection(
    collect_funcs: Union[Mapping[str, Functions], Functions, None],
    retain: Optional[Functions],
    default: Sequence[str],
    warmup: int = 0,
    last: Optional[int] = None,
) -> Collection:
    """Settle the parameters that say which functions are read; ``default`` where nothing is said.

    Raises:
        ValueError: naming the parameter, the value and what is allowed.
    """
    given = {DEFAULT: default} if collect_funcs is None else collect_funcs
    by_kind = given if isinstance(given, Mapping) else {DEFAULT: given}
    for kind in by_kind:
        if kind not in (DEFAULT, *KINDS):
            raise ValueError(f'collect_funcs: kind {kind!r} is not allowed; {allowed_are([DEFAULT, *KINDS], kind)}')
    everywhere = _names(by_kind.get(DEFAULT), f'collect_funcs.{DEFAULT}')
    own = {kind: _names(by_kind.get(kind), f'collect_funcs.{kind}') for kind in KINDS}
    functions = {kind: everywhere | own[kind] for kind in KINDS}
    named = frozenset().union(*functions.values())
    if not named and collect_funcs is not None:
        raise ValueError(f'collect_funcs={collect_funcs!r} names no function, so that nothing would be read')
    retained = named if retain is None else _names(retain, 'retain_hooks_for_funcs')
    for name in sorted(retained - named) if collect_funcs is not None else ():
        raise ValueError(f'retain_hooks_for_funcs: {name!r} is not read; {allowed_are(sorted(named), name)}')
    return Collection(functions, collect_funcs is None, warmup, last, retained, frozenset(k for k in KINDS if own[k]))


def _names(names: Optional[Iterable[str]], parameter: str) -> frozenset[str]:
    if names is None:
        return frozenset()
    if isinstance(names, str) or not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{parameter}={names!r} is not allowed; it is a list of functions' names")
    return frozenset(names)
