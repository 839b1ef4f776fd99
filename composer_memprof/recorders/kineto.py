"""Record a session of torch's profiler (Kineto), and read its result. A process can have one session at a time.

with KinetoRecorder(profile_memory=True) as recorder:
    train_one_batch()
export_trace(recorder.result, Path('rank0.pt.trace.json'))
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from torch.profiler import ProfilerActivity

from composer_memprof.garbage import no_collection, unwatched
from composer_memprof.messages import allowed_are, check_switches
from composer_memprof.recorders.torch_private import memory_profiler, profiler, profiler_config, profiler_events

#: The modules of ``torch_private`` that a recording needs.
NEEDS = (profiler,)
#: Further ones, that the event tree, ``memory_timeline`` and ``experimental_config`` need.
EVENT_TREE_NEEDS = (profiler_events,)
MEMORY_TIMELINE_NEEDS = (memory_profiler,)
EXPERIMENTAL_CONFIG_NEEDS = (profiler_config,)

#: Arguments of torch.profiler.profile that say when to record and what to do with the trace: a callback's part.
_NOT_PASSED_ON = ('self', 'schedule', 'on_trace_ready')
_SWITCHES = ('record_shapes', 'profile_memory', 'with_stack', 'with_flops', 'with_modules', 'acc_events')
_ACTIVITIES = {activity.name.lower(): activity for activity in ProfilerActivity.__members__.values()}


def profile_arguments() -> tuple[str, ...]:
    """The arguments of :class:`torch.profiler.profile` that are passed on to it."""
    names = inspect.signature(torch.profiler.profile.__init__).parameters
    return tuple(name for name in names if name not in _NOT_PASSED_ON)


def check_profile_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check arguments for :class:`torch.profiler.profile`, from Python or from YAML.

    ``activities`` may be names (``['cpu', 'cuda']``), ``experimental_config`` a mapping.

    Raises:
        ValueError: naming an unknown argument or activity, and what is allowed.
    """
    checked = dict(arguments)
    allowed = profile_arguments()
    for name in checked:
        if name not in allowed:
            raise ValueError(
                f'{name}={checked[name]!r} is unknown to torch.profiler.profile; {allowed_are(allowed, name)}'
            )
    if checked.get('activities') is not None:
        if isinstance(checked['activities'], (str, ProfilerActivity)):
            checked['activities'] = [checked['activities']]
        checked['activities'] = [_activity(value) for value in checked['activities']]
    check_switches(**{name: checked[name] for name in _SWITCHES if name in checked})
    if isinstance(checked.get('experimental_config'), Mapping):
        checked['experimental_config'] = _experimental_config(checked['experimental_config'])
    return checked


def _activity(value: Any) -> ProfilerActivity:
    if isinstance(value, ProfilerActivity):
        return value
    if str(value).lower() not in _ACTIVITIES:
        raise ValueError(f'activities={value!r} is unknown; {allowed_are(list(_ACTIVITIES), value)}')
    return _ACTIVITIES[str(value).lower()]


def _experimental_config(options: Mapping[str, Any]) -> Any:
    try:
        return profiler_config.ExperimentalConfig(**options)
    except TypeError as error:
        message = str(error).splitlines()[0]
        raise ValueError(f'experimental_config={dict(options)!r} is not allowed: {message}') from error


def is_profiling() -> bool:
    """True if a session of torch's profiler, anyone's, runs in this process."""
    return bool(profiler.is_profiling())


def stacks_are_safe() -> bool:
    """False on Python 3.13 and later, where a session that follows Python calls ends the process (SIGSEGV in torch)."""
    return sys.version_info < (3, 13)


@dataclass(frozen=True)
class KinetoResult:
    """A finished session, for the functions of this module and of ``cpu_allocations`` to read."""

    profile: torch.profiler.profile
    arguments: Mapping[str, Any]

    def events(self) -> list[Any]:
        """The roots of the event tree.

        Raises:
            MissingTorchNameError: if torch has no event tree.
        """
        return profiler_events.event_roots(self.profile)


def leave_libraries_at_exit() -> None:
    """Let this process end without the destructors of C++ libraries. What Python does at exit is done. Needs glibc."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, 'on_exit'):
        libc.on_exit(libc._exit, None)  # is called with the status
        libc.on_exit(libc.fcloseall, None)  # before it: the last one first


@functools.cache
def _let_forks_end() -> None:
    """Before the first session: a process that the user's code forks from now on ends without libraries' destructors.

    Kineto's destructor waits for its thread, which a forked process does not have, and would never return there. Seen
    with torch 2.7.0, with any session before the fork.
    """
    if hasattr(os, 'register_at_fork'):
        os.register_at_fork(after_in_child=leave_libraries_at_exit)


class KinetoRecorder:
    """Records with :class:`torch.profiler.profile`, as a context manager or by ``start`` and ``stop``.

    A session that follows Python calls follows those of all threads. In one of these, a garbage collection that calls a
    function of Python may pass on to the thread that ends the session meanwhile, and the process dies of SIGSEGV (torch 2.7.0).
    So no garbage is collected while a session starts or stops, and this package's own functions are not called for
    collections within it: ``StepTimes`` does not see these.

    Readers that record exactly the same windows share one recorder: the first ``start`` begins a session, the first
    ``stop`` ends it, and each reader gets the result once.

    Args:
        arguments: for :class:`torch.profiler.profile`.
    """

    def __init__(self, **arguments: Any) -> None:
        if arguments.get('activities') is None:
            arguments['activities'] = _available_activities()
        self.arguments = arguments
        #: The result of the last ``with`` block.
        self.result: Optional[KinetoResult] = None
        self._profile: Optional[torch.profiler.profile] = None
        self._started = False
        self._unwatched = contextlib.ExitStack()  # while a session follows Python calls
        self._readers: set[int] = set()  # of the current session
        self._unread: dict[int, KinetoResult] = {}  # results that their reader has not fetched yet

    def widen(self, **arguments: Any) -> None:
        """Add the switches and activities that a further reader needs."""
        for name, value in arguments.items():
            present = self.arguments.get(name)
            if name == 'activities':
                self.arguments[name] = list({*(present or ()), *(value or ())})
            elif isinstance(value, bool):
                self.arguments[name] = bool(present) or value
            elif present is None:
                self.arguments[name] = value

    def prepare(self) -> None:
        """Warm up, so that the profiler's own set-up is not part of a recorded batch."""
        if self._profile is None:
            _let_forks_end()
            arguments = self.arguments if stacks_are_safe() else {**self.arguments, 'with_stack': False}
            self._profile = torch.profiler.profile(**arguments)
            self._profile.prepare_trace()

    def start(self, reader: object = None, metadata: Optional[Mapping[str, str]] = None) -> None:
        """Begin to record for ``reader``. ``metadata`` are names and JSON values that the trace gets."""
        if not self._started:
            self.prepare()
            assert self._profile is not None
            with no_collection():
                if self.arguments.get('with_stack'):
                    self._unwatched.enter_context(unwatched())
                self._profile.start_trace()
            self._started = True
        self._readers.add(id(reader))
        for name, value in (metadata or {}).items():
            assert self._profile is not None
            self._profile.add_metadata_json(name, value)

    def stop(self, reader: object = None) -> KinetoResult:
        """End the session, and return its result to ``reader``. Must run on the thread that started it.

        The recorder keeps the result until every reader has it.
        """
        if id(reader) not in self._unread:
            assert self._profile is not None and self._started, 'stopped without a start'
            with no_collection():
                self._profile.stop_trace()
            profiler.break_reference_cycle(self._profile)
            result = KinetoResult(self._profile, self.arguments)
            self._unread = dict.fromkeys(self._readers, result)
            self._forget_session()
        return self._unread.pop(id(reader))

    def cancel(self) -> None:
        """Cancel a warm-up or a recording: end it without a result."""
        self._unread.clear()
        if self._profile is not None:
            with no_collection():
                if not self._started:  # torch can end a prepared session only after it has started
                    self._profile.start_trace()
                self._profile.stop_trace()
            profiler.break_reference_cycle(self._profile)
            self._forget_session()

    def _forget_session(self) -> None:
        observer = self._profile.execution_trace_observer if self._profile is not None else None
        if observer is not None:
            observer.cleanup()
        self._profile, self._started = None, False
        self._readers = set()
        self._unwatched.close()

    def __enter__(self) -> KinetoRecorder:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.result = self.stop()


def _available_activities() -> list[ProfilerActivity]:
    """What torch can record on this machine. Without a device, a CUDA build would warn at every window."""
    activities = torch.profiler.supported_activities()
    if not torch.cuda.is_available():
        activities = activities - {ProfilerActivity.CUDA}
    return sorted(activities, key=lambda activity: activity.name)


def export_trace(result: KinetoResult, path: Path) -> None:
    """Write a Chrome trace, which TensorBoard, Perfetto and chrome://tracing read.

    Raises:
        OSError: if torch could not write it.
    """
    if not path.exists():  # else it is tried again, because _remove_path found no file left to open
        result.profile.export_chrome_trace(str(path))
    if not path.exists():  # torch only logs an error in writing
        raise OSError('torch could not write the trace; the disk may be full, or no file left to open')
    _remove_path(path)


def _remove_path(path: Path) -> None:
    """Empty the trace's name, which torch writes near the file's end: it is a temporary path of this machine."""
    with open(path, 'r+b') as file:
        start = max(os.path.getsize(path) - 4096, 0)
        file.seek(start)
        end = file.read()
        file.seek(start)
        file.write(re.sub(rb'"traceName": "[^"]*"', b'"traceName": ""', end))
        file.truncate()


SORT_KEYS = (
    *('cpu_time', 'cuda_time', 'xpu_time', 'cpu_time_total', 'cuda_time_total', 'xpu_time_total'),
    *('self_cpu_time_total', 'self_cuda_time_total', 'self_xpu_time_total'),
    *('cpu_memory_usage', 'cuda_memory_usage', 'xpu_memory_usage'),
    *('self_cpu_memory_usage', 'self_cuda_memory_usage', 'self_xpu_memory_usage', 'count'),
)


@dataclass(frozen=True)
class SummaryTable:
    """How torch's table of ``key_averages`` is made.

    Args:
        sort_by (str): the column that decides the order, one of :data:`SORT_KEYS`, the largest first.
        row_limit (int): rows; -1 for all.
        max_name_column_width (int): characters of a name, above which it is cut; 0 cuts none.
        group_by_input_shapes (bool): one row for each operator and input shapes. The session needs ``record_shapes``.
    """

    sort_by: str = 'cpu_time_total'
    row_limit: int = 20
    max_name_column_width: int = 55
    group_by_input_shapes: bool = False


def summarize(result: KinetoResult, table: SummaryTable) -> str:
    """torch's table of ``key_averages`` as text."""
    averages = result.profile.key_averages(group_by_input_shape=table.group_by_input_shapes)
    return averages.table(
        sort_by=table.sort_by,
        row_limit=table.row_limit,
        max_name_column_width=table.max_name_column_width or sys.maxsize,
    )


@dataclass(frozen=True)
class MemoryTimeline:
    """Memory of one device over time.

    Args:
        device (str): as torch prints it.
        times_us (Sequence[float]): microseconds from the first event.
        sizes (Mapping[str, Sequence[int]]): bytes of each category at each time, by the vocabulary's keys.
    """

    device: str
    times_us: Sequence[float]
    sizes: Mapping[str, Sequence[int]]

    @property
    def peak_bytes(self) -> int:
        return max((sum(row) for row in zip(*self.sizes.values())), default=0)


def memory_timeline(result: KinetoResult, device: str) -> MemoryTimeline:
    """Memory by the categories that torch itself finds. Needs ``record_shapes``, ``profile_memory`` and ``with_stack``."""
    times, sizes = memory_profiler.memory_by_category(result.profile, device)
    start = times[0] if times else 0
    return MemoryTimeline(device, [time - start for time in times], sizes)
