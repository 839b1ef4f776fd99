"""Memory at the start and end of functions, from several sources at once.

recorder = FunctionMemoryRecorder(Selection({'cpu': frozenset({'step'})}), {'cpu': HostSource()}, print)
with recorder:
    call = recorder.begin('step')
    ...
    recorder.end(call)
"""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from composer_memprof.messages import errors_logged, log_error, nearest, warn
from composer_memprof.recorders.functions import marked
from composer_memprof.recorders.functions.selection import HISTORY, Selection
from composer_memprof.recorders.functions.source import END, START, FunctionCall, Source, Values
from composer_memprof.signals import holds_signals

#: Longer names are cut off: YAML allows no longer key.
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Reading:
    """The values of all sources at the ``point`` of a call: ``'start'``, ``'end'``, or a moment that the user named."""

    function: str
    iteration: int
    point: str
    values: Values

    def key(self, rank: int) -> str:
        """As in finetuning-scheduler: ``'0.training_step.2.start'``."""
        return f'{rank}.{self.function}.{self.iteration}.{self.point}'


class FunctionMemoryRecorder:
    """Reads memory as functions begin and end; usable without a Trainer.

    Calls are always counted. They are read while the recorder is open (a ``with`` block, or :meth:`open` and
    :meth:`close`) if the selection includes them. Thread-safe. An error of a source never reaches the caller: the
    source is removed, with one warning.

    Args:
        selection (Selection): which functions are read, by kind of source, and which of their calls.
        sources (Mapping): by kind.
        take (Callable): called with each :class:`Reading`.
        reserved (Collection): names of training functions, which a marked function cannot have.
    """

    def __init__(
        self,
        selection: Selection,
        sources: Mapping[str, Source],
        take: Callable[[Reading], None],
        reserved: Collection[str] = (),
    ) -> None:
        self.selection = selection
        self._sources = dict(sources)
        self._take = take
        self._lock = threading.RLock()  # reentrant, since a user's hook may be a marked function
        #: Number of calls so far, by function.
        self.call_counts: Counter[str] = Counter()
        self._reserved = frozenset(reserved)
        self._warned_of_reserved = False
        self._warned_of_never_ran = False
        #: Functions whose last call was read.
        self._finished: set[str] = set()
        self._opened: list[str] = []
        self._thread = 0
        self._process = 0
        self.is_open = False

    # -- windows ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read calls from now on. Sources that work on one thread work on this one."""
        self._thread, self._process = threading.get_ident(), os.getpid()
        self.is_open = True

    def close(self) -> None:
        """Stop reading, and close the sources."""
        self.is_open = False
        for kind in self._opened:
            source = self._sources.get(kind)
            if source is not None:
                self._run_safely(kind, source.close)
        self._opened = []

    def __enter__(self) -> FunctionMemoryRecorder:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- calls ------------------------------------------------------------------------------------------------------

    def begin(self, name: str) -> Optional[FunctionCall]:
        """A function marked by the user begins. Returns the argument of :meth:`end`."""
        call = self._begin_marked(name)
        if not self._will_read(name):
            marked.release(self, name)
        return call

    def _begin_marked(self, name: str) -> Optional[FunctionCall]:
        if name in self._reserved:
            if not self._warned_of_reserved:
                self._warned_of_reserved = True
                warn(
                    f'MemProfiler does not read the marked function {name!r}: a training function has that name. '
                    f"Give the mark another name, such as @memprofilable('my_{name}')"
                )
            return None
        return self._begin(name, is_marked=True)

    def _will_read(self, name: str) -> bool:
        """Whether a further call of a marked function can be read."""
        if name in self._reserved or not self.selection.kinds_of(name, marked=True):
            return False
        return not self.selection.is_over(self.call_counts[name[:_LONGEST_NAME]])

    def end(self, call: Optional[FunctionCall]) -> None:
        """A function ends, with or without an exception."""
        if call is None or not self.is_open:
            return
        self._read(call, END)
        self._is_over(call)

    def _is_over(self, call: FunctionCall) -> None:
        """Remove what no further call needs."""
        if self.selection.is_last(call.iteration):
            self._finished.add(call.function)
            if self.selection.retain <= self._finished:
                self.remove_hooks()
            if self.selection.functions.get(HISTORY, frozenset()) <= self._finished:
                self._remove(HISTORY)

    def read(self, call: Optional[FunctionCall], point: str) -> None:
        """Read a running call at the moment ``point`` between its start and its end."""
        if call is not None and self.is_open:
            self._read(call, point)

    def restart(self, call: Optional[FunctionCall]) -> None:
        """What is counted within the call counts from here on."""
        if call is not None and self.is_open:
            self._visit(call, lambda source: source.restart(call))

    def cancel(self, call: Optional[FunctionCall]) -> None:
        """Drop a call that will not end, because an error interrupted it and the function begins again."""
        if call is not None and self.is_open:
            self._visit(call, lambda source: source.end(call), backwards=True)
            self._is_over(call)

    def begin_training_function(
        self, name: str, inputs: Any = None, is_marked: bool = False, silent: bool = False
    ) -> Optional[FunctionCall]:
        """A training function such as ``'forward'`` begins. Returns the argument of :meth:`end_training_function`.

        Args:
            name (str): of the function.
            inputs: the tensors that it works on, in any nesting.
            is_marked (bool): True if the user marked it, so the selection need not name it.
            silent (bool): its start is not read.
        """
        call = self._begin(name, is_marked, silent)
        self.notify_begin(name, inputs)
        return call

    def notify_begin(self, name: str, inputs: Any = None) -> None:
        """Tell the sources that a training function begins, without counting a call."""
        if self.is_open:
            self._notify(lambda source: source.training_function_begins(name, inputs))

    def notify_end(self, name: str) -> None:
        """Tell the sources that a training function ended."""
        if self.is_open:
            self._notify(lambda source: source.training_function_ends(name))

    def end_training_function(self, name: str, call: Optional[FunctionCall]) -> None:
        self.notify_end(name)
        self.end(call)

    def _begin(self, function: str, is_marked: bool, silent: bool = False) -> Optional[FunctionCall]:
        function = function[:_LONGEST_NAME]
        with self._lock:
            self.call_counts[function] += 1
            iteration = self.call_counts[function]
        if not self.is_open or os.getpid() != self._process:
            return None
        sources = self._sources_of(function, iteration, is_marked)
        if not sources:
            return None
        call = FunctionCall(function, iteration, sources, threading.get_ident())
        if silent:
            self._visit(call, lambda source: source.begin(call))
        else:
            self._read(call, START)
        return call

    def warn_of_functions_that_never_ran(self, others: Sequence[str] = ()) -> None:
        """Warn once of selected functions that never ran. ``others``: further names, for suggestions."""
        if self.selection.marked or self._warned_of_never_ran:  # the user selected none by name
            return
        self._warned_of_never_ran = True
        never_ran = sorted(self.selection.names - set(self.call_counts))
        known = [name for name in (*others, *self.call_counts) if name not in never_ran]
        if never_ran:
            names = ', '.join(f'{name!r}{nearest(name, known)}' for name in never_ran)
            warn(f'these functions in collect_funcs never ran: {names}')

    # -- sources ----------------------------------------------------------------------------------------------------

    def _sources_of(self, function: str, iteration: int, is_marked: bool) -> dict[str, Source]:
        """The sources that read this call, opened."""
        if not self.selection.includes(iteration):
            return {}
        kinds = self.selection.kinds_of(function, is_marked)
        own_thread = self._is_own_thread()
        sources = {
            kind: source
            for kind, source in list(self._sources.items())
            if kind in kinds and (own_thread or not source.one_thread)
        }
        with self._lock:
            for kind, source in sources.items():
                if kind not in self._opened:
                    self._opened.append(kind)
                    self._run_safely(kind, source.open)
        return sources

    def _is_own_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def _notify(self, notify: Callable[[Source], None]) -> None:
        if self._is_own_thread():
            for kind, source in list(self._sources.items()):
                self._run_safely(kind, functools.partial(notify, source))

    def remove_hooks(self) -> None:
        """Remove the hooks on the model, for good."""
        for kind, source in list(self._sources.items()):
            if source.has_hooks:
                self._remove(kind)

    def _remove(self, kind: str) -> None:
        source = self._sources.pop(kind, None)
        if source is not None and kind in self._opened:
            with errors_logged(f'closing {kind} failed'):
                source.close()

    @holds_signals
    def _read(self, call: FunctionCall, point: str) -> None:
        values: Values = {}

        def read(source: Source) -> None:
            if point == START:
                source.begin(call)
            values.update(source.read(call, point))
            if point == END:
                source.end(call)

        self._visit(call, read, backwards=point != START)
        try:
            self._take(Reading(call.function, call.iteration, point, values))
        except Exception as error:
            log_error('MemProfiler could not read memory')
            if self.is_open:
                self.close()
                warn(f'MemProfiler stops reading memory: {type(error).__name__}: {error}. Training continues.')

    def _visit(self, call: FunctionCall, action: Callable[[Source], None], *, backwards: bool = False) -> None:
        """Run an action of each source that reads the call. ``backwards``: what begins last ends first."""
        for kind, source in list(call.sources.items())[:: -1 if backwards else 1]:
            if kind in self._sources and not (source.one_thread and threading.get_ident() != call.thread):
                self._run_safely(kind, functools.partial(action, source))

    @holds_signals
    def _run_safely(self, kind: str, action: Callable[[], Any]) -> Any:
        """Run an action of a source. If it fails, remove the source and return None."""
        try:
            return action()
        except Exception as error:
            log_error(f'MemProfiler could not read {kind}')
            source = self._sources.pop(kind, None)
            if source is not None:
                warn(f'MemProfiler continues without {kind}: {type(error).__name__}: {error}')
                with errors_logged(f'closing {kind} failed too'):  # most likely the same error again
                    source.close()
            return None
