"""The base class of all schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from composer.core import State
from composer.profiler import ProfilerAction

from composer_memprof.schedule.clocks import Clock
from composer_memprof.schedule.composer import ComposerView
from composer_memprof.schedule.cursor import Cursor
from composer_memprof.schedule.spans import Span

ScheduleFunction = Callable[[State], ProfilerAction]
ScheduleInput = Union['Schedule', ScheduleFunction, Mapping[str, Any]]


@dataclass
class Operators:
    """The functions behind ``&``, ``|`` and ``~``. ``algebra`` sets them, because its classes derive from :class:`Schedule`."""

    both: Callable[[ScheduleInput, ScheduleInput], Schedule]
    either: Callable[[ScheduleInput, ScheduleInput], Schedule]
    complement: Callable[[Schedule], Schedule]


_operators: Operators


def set_operators(operators: Operators) -> None:
    """Called once, by ``algebra``, which the package imports."""
    global _operators
    _operators = operators


class Schedule(ABC):
    """Which batches to record. Combine with ``&`` (both), ``|`` (either), ``~`` (all other batches).

    As a callable it is a ``prof_schedule`` for Composer's own :class:`~composer.profiler.Profiler`: exact in ``ba``. In
    other units the save may be one batch late, ``skip`` counts from 0, and only training is recorded.

    >>> from composer_memprof.schedule import on_ranks, window
    >>> schedule = window(active='3ba', skip='1ba', warmup='1ba') & on_ranks(0)
    """

    _composer_view: Optional[ComposerView] = None

    @abstractmethod
    def bind(self, clock: Clock, state: Optional[State]) -> Cursor:
        """A cursor that counts from the clock's time now. ``state`` gives the length of training for ``dur``."""

    @abstractmethod
    def spans(self) -> Iterator[Span]:
        """Every length of time in it."""

    def parts(self) -> Iterator[Schedule]:
        """The schedules that a combination combines; for any other schedule, the schedule itself."""
        yield self

    def may_run_on(self, rank: int, local_rank: Optional[int] = None) -> bool:
        """False if ``rank`` never records. ``local_rank``: its rank in its node; by default as in this run."""
        del rank, local_rank  # every rank may, unless a subclass says otherwise
        return True

    def named_ranks(self) -> frozenset[int]:
        """The global ranks that the schedule names."""
        return frozenset()

    def named_local_ranks(self) -> frozenset[int]:
        """The local ranks that the schedule names."""
        return frozenset()

    @property
    def ends_by_itself(self) -> bool:
        """True if its windows have an end, so that a run that ends inside a window cuts it short."""
        return True

    def without_skip(self) -> Optional[Schedule]:
        """The window of a schedule with one window, without ``skip``; None for other schedules."""
        return None

    @property
    def counts_only_batches(self) -> bool:
        return all(span.unit == 'ba' for span in self.spans())

    def __and__(self, other: ScheduleInput) -> Schedule:
        return _operators.both(self, other)

    def __rand__(self, other: ScheduleInput) -> Schedule:
        return _operators.both(other, self)

    def __or__(self, other: ScheduleInput) -> Schedule:
        return _operators.either(self, other)

    def __ror__(self, other: ScheduleInput) -> Schedule:
        return _operators.either(other, self)

    def __invert__(self) -> Schedule:
        return _operators.complement(self)

    def __call__(self, state: State) -> ProfilerAction:
        """The action for the batch about to start. Composer's profiler asks several times for the same batch."""
        view = self._composer_view
        if view is None or not view.is_of(state):
            view = ComposerView(self, state)
            object.__setattr__(self, '_composer_view', view)
        return view.action(state)
