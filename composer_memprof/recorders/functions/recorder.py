"""Memory at the start and the end of functions, from several sources at once.

recorder = FunctionMemoryRecorder(Collection(), {'cpu': HostSource()}, print)
with recorder:
    call = recorder.begin('training_step')
    ...
    recorder.end(call)
"""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Collection_
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Optional

from composer_memprof.messages import nearest, warn
from composer_memprof.recorders.functions.selection import Collection

Values = dict[str, Any]
#: Of a function's name: a longer one could not be a key in YAML.
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Reading:
    """What was read at one moment. ``values`` are flat: names as the sources' own tools have them, sizes in bytes."""

    function: str
    iteration: int
    moment: str
    values: Values

    def key(self, rank: int) -> str:
        """As finetuning-scheduler has it, ``'0.training_step.2.start'``."""
        return f'{rank}.{self.function}.{self.iteration}.{self.moment}'


class Source:
    """Where memory is read: a call's begin and end give values. From ``open`` to ``close`` it may have hooks in place."""

    #: Whether it works on the thread alone that has opened it.
    one_thread = False
    #: Whether it has hooks in place between calls, too.
    has_hooks = False

    def open(self) -> None:
        """Before the first call that it reads."""

    def close(self) -> None:
        """After the last, or in the midst of one."""

    def begin(self, call: Call) -> Values:
        return {}

    def end(self, call: Call) -> Values:
        return {}

    def phase_begins(self, phase: str, inputs: Any) -> None:
        """Of every function, whether its calls are read or not."""

    def phase_ends(self, phase: str) -> None: ...


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a function, from its begin to its end. ``iteration`` counts its calls, from 1."""

    function: str
    iteration: int
    #: That read it.
    sources: Mapping[str, Source]
    thread: int
    #: What a source wants to know again at the end.
    notes: dict[str, Any] = field(default_factory=dict)


class FunctionMemoryRecorder:
    """Reads memory as functions begin and end; usable without a Trainer.

    Calls are counted by function all the time, and read while the recorder is open (a ``with`` block, or
    :meth:`open` and :meth:`close`), of the iterations that ``collection`` wants. Thread-safe. No error of a source
    reaches whoever calls: the source is left out from then on, with one warning.

    Args:
        collection (Collection): which functions, by kind of source, and which of their calls.
        sources (Mapping): by kind.
        take (Callable): is given each reading.
        reserved (Collection): names of the training's own functions, that a marked one can't have.
    """

    def __init__(
        self,
        collection: Collection,
        sources: Mapping[str, Source],
        take: Callable[[Reading], None],
        reserved: Collection_[str] = (),
    ) -> None:
        self.collection = collection
        self._sources = dict(sources)
        self._take = take
        self._lock = threading.RLock()  # a hook of the user's may be a marked function
        #: By function.
        self.calls: Counter[str] = Counter()
        self._reserved = frozenset(reserved)
        self._told_of_name = False
        self._ended: set[str] = set()
        self._opened: list[str] = []
        self._thread = 0
        self._process = 0
        self._told_of_absent = False
        self.is_open = False

    # -- while readings are wanted ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Read from now on."""
        self._thread, self._process = threading.get_ident(), os.getpid()
        self.is_open = True

    def close(self) -> None:
        """Read no more; what the sources have in place is taken out."""
        self.is_open = False
        for kind in self._opened:
            source = self._sources.get(kind)
            if source is not None:
                self._guarded(kind, source.close)
        self._opened = []

    def __enter__(self) -> FunctionMemoryRecorder:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- calls ------------------------------------------------------------------------------------------------------

    def begin(self, name: str) -> Optional[Call]:
        """A function begins that the user has marked; returns what :meth:`end` takes."""
        if name in self._reserved:
            if not self._told_of_name:
                self._told_of_name = True
                warn(
                    f'MemProfiler leaves out the marked function {name!r}: a part of the training has that name; '
                    f"give it another, as @memprofilable('my_{name}')"
                )
            return None
        return self._begin(name, marked=True)

    def begin_part(self, name: str, inputs: Any = None, marked: bool = False) -> Optional[Call]:
        """A part of the training begins, as ``'forward'``.

        Args:
            name (str): of it.
            inputs: tensors that it works on, in any nesting.
            marked (bool): the user has marked it, so that it need not be named by the collection.
        """
        call = self._begin(name, marked)
        self.tell_of_part(name, inputs)
        return call

    def tell_of_part(self, name: str, inputs: Any = None) -> None:
        """It begins, and is not counted."""
        if self.is_open:
            self._tell_all(lambda source: source.phase_begins(name, inputs))

    def end_part(self, name: str, call: Optional[Call]) -> None:
        if self.is_open:
            self._tell_all(lambda source: source.phase_ends(name))
        self.end(call)

    def _begin(self, function: str, marked: bool) -> Optional[Call]:
        function = function[:_LONGEST_NAME]
        with self._lock:
            self.calls[function] += 1
            iteration = self.calls[function]
        if not self.is_open or os.getpid() != self._process:
            return None
        sources = self._sources_of(function, iteration, marked)
        if not sources:
            return None
        call = Call(function, iteration, sources, threading.get_ident())
        self._read(call, 'start')
        return call

    def end(self, call: Optional[Call]) -> None:
        """A function ends, well or not."""
        if call is None or not self.is_open:
            return
        self._read(call, 'end')
        if self.collection.is_last(call.iteration):
            self._ended.add(call.function)
            if self.collection.retain <= self._ended:
                self._take_hooks_out()

    def drop(self, call: Optional[Call]) -> None:
        """A function was cut short, and is begun anew: it has no end to be read."""
        if call is not None and self.is_open:
            self._values(call, 'end')

    def _sources_of(self, function: str, iteration: int, marked: bool) -> dict[str, Source]:
        if not self.collection.wants(iteration):
            return {}
        kinds = self.collection.kinds_of(function, marked)
        here = self._is_own_thread()
        sources = {
            kind: source
            for kind, source in list(self._sources.items())
            if kind in kinds and (here or not source.one_thread)
        }
        with self._lock:
            for kind, source in sources.items():
                if kind not in self._opened:  # no earlier than it is needed
                    self._opened.append(kind)
                    self._guarded(kind, source.open)
        return sources

    def _is_own_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def _tell_all(self, tell: Callable[[Source], None]) -> None:
        if self._is_own_thread():
            for kind, source in list(self._sources.items()):
                self._guarded(kind, functools.partial(tell, source))

    def _take_hooks_out(self) -> None:
        for kind, source in list(self._sources.items()):
            if source.has_hooks:
                del self._sources[kind]
                if kind in self._opened:
                    with suppress(Exception):
                        source.close()

    def _read(self, call: Call, moment: str) -> None:
        values = self._values(call, moment)
        self._guarded('', lambda: self._take(Reading(call.function, call.iteration, moment, values)))

    def _values(self, call: Call, moment: str) -> Values:
        values: Values = {}
        # What has been begun last ends first.
        kinds = list(call.sources) if moment == 'start' else list(reversed(list(call.sources)))
        for kind in kinds:
            source = call.sources[kind]
            if kind in self._sources and not (source.one_thread and threading.get_ident() != call.thread):
                read = source.begin if moment == 'start' else source.end
                values.update(self._guarded(kind, functools.partial(read, call)) or {})
        return values

    def _guarded(self, kind: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            source = self._sources.pop(kind, None)
            if source is not None:
                warn(f'MemProfiler goes on without {kind}: {type(error).__name__}: {error}')
                with suppress(Exception):  # it would say nothing new
                    source.close()
            elif not kind and self.is_open:
                self.close()
                warn(f'MemProfiler collects nothing any more: {type(error).__name__}: {error}')
            return None

    def warn_of_absent(self, others: Sequence[str] = ()) -> None:
        """Say which functions were to be read and never ran; ``others`` are names that could have been meant."""
        if self.collection.marked or self._told_of_absent:  # nobody has named any
            return
        self._told_of_absent = True
        absent = sorted(self.collection.named - set(self.calls))
        known = [name for name in (*others, *self.calls) if name not in absent]
        if absent:
            words = ', '.join(f'{name!r}{nearest(name, known)}' for name in absent)
            warn(f'MemProfiler was to read what never ran: {words}')
