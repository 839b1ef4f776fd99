"""One session of torch's profiler (Kineto), and what can be had from it. Kineto has one session a process.

with KinetoRecorder(profile_memory=True) as recorder:
    train_one_batch()
export_trace(recorder.result, Path('rank0.pt.trace.json'))
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from torch.profiler import ProfilerActivity

from composer_memprof.messages import allowed_are

#: Arguments of torch.profiler.profile that say when and whereto, which is not a recorder's to know.
_NOT_OURS = ('self', 'schedule', 'on_trace_ready')
_ACTIVITIES = {activity.name.lower(): activity for activity in ProfilerActivity.__members__.values()}


def profile_arguments() -> tuple[str, ...]:
    """The arguments of :class:`torch.profiler.profile` that are passed through to it."""
    names = inspect.signature(torch.profiler.profile.__init__).parameters
    return tuple(name for name in names if name not in _NOT_OURS)


def check_profile_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for :class:`torch.profiler.profile`, from Python or from YAML.

    ``activities`` may be words (``['cpu', 'cuda']``), ``experimental_config`` a mapping.

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
    for name in ('record_shapes', 'profile_memory', 'with_stack', 'with_flops', 'with_modules', 'acc_events'):
        if not isinstance(checked.get(name, False), bool):
            raise ValueError(f'{name}={checked[name]!r} is not allowed; it is true or false')
    if isinstance(checked.get('experimental_config'), Mapping):
        checked['experimental_config'] = _experimental_config(checked['experimental_config'])
    return checked


def _activity(value: Any) -> ProfilerActivity:
    if isinstance(value, ProfilerActivity):
        return value
    if str(value).lower() not in _ACTIVITIES:
        raise ValueError(f'activities={value!r} is unknown; allowed are {", ".join(_ACTIVITIES)}')
    return _ACTIVITIES[str(value).lower()]


def _experimental_config(options: Mapping[str, Any]) -> Any:
    """A private class of torch (2.6 to 2.11); what it takes is known to itself alone."""
    try:
        return torch._C._profiler._ExperimentalConfig(**options)
    except TypeError as error:
        message = str(error).splitlines()[0]
        raise ValueError(f'experimental_config={dict(options)!r} is not allowed: {message}') from error


def is_profiling() -> bool:
    """Whether a session of torch's profiler, of whomever, is running in this process."""
    return bool(torch.autograd._profiler_enabled())


@dataclass(frozen=True)
class KinetoResult:
    """A finished session. The functions of this module and of ``cpu_allocations`` read it."""

    profile: torch.profiler.profile
    arguments: Mapping[str, Any]

    def events(self) -> list[Any]:
        """The roots of the event tree. Private in torch; checked on 2.6 to 2.7."""
        inner = self.profile.profiler
        assert inner is not None
        results = inner.kineto_results
        if results is None or not hasattr(results, 'experimental_event_tree'):
            raise RuntimeError(f'torch {torch.__version__} has no experimental_event_tree, which memory events need')
        return results.experimental_event_tree()


class KinetoRecorder:
    """Records with :class:`torch.profiler.profile`; as a context manager, or step by step.

    Those who record exactly the same windows share one recorder: the first to ``start`` begins a session, the first to
    ``stop`` ends it, and each is given the result once.

    Args:
        arguments: of :class:`torch.profiler.profile`.
    """

    def __init__(self, **arguments: Any) -> None:
        if arguments.get('activities') is None:
            arguments['activities'] = _available_activities()
        self.arguments = arguments
        #: Of the last ``with`` block.
        self.result: Optional[KinetoResult] = None
        self._profile: Optional[torch.profiler.profile] = None
        self._started = False
        self._readers: set[int] = set()  # of the running session
        self._unread: dict[int, KinetoResult] = {}  # results that a reader has not asked for yet

    def widen(self, **arguments: Any) -> None:
        """Record for a second reader too: its switches are added, and its activities."""
        for name, value in arguments.items():
            mine = self.arguments.get(name)
            if name == 'activities':
                self.arguments[name] = list({*(mine or ()), *(value or ())})
            elif isinstance(value, bool):
                self.arguments[name] = bool(mine) or value
            elif mine is None:
                self.arguments[name] = value

    def prepare(self) -> None:
        """Warm up: the profiler's own set-up then falls into no recorded batch."""
        if self._profile is None:
            self._profile = torch.profiler.profile(**self.arguments)
            self._profile.prepare_trace()

    def start(self, reader: object = None, metadata: Optional[Mapping[str, str]] = None) -> None:
        """Begin to record for ``reader``. ``metadata``: names and JSON values for the trace."""
        if not self._started:
            self.prepare()
            assert self._profile is not None
            self._profile.start_trace()
            self._started = True
        self._readers.add(id(reader))
        for name, value in (metadata or {}).items():
            assert self._profile is not None
            self._profile.add_metadata_json(name, value)

    def stop(self, reader: object = None) -> KinetoResult:
        """End the session of ``reader``; its result is kept here no longer than until all readers have it.

        Has to run on the thread that started it.
        """
        if id(reader) not in self._unread:
            assert self._profile is not None and self._started, 'stopped without a start'
            self._profile.stop_trace()
            _break_cycle(self._profile)
            result = KinetoResult(self._profile, self.arguments)
            self._unread = dict.fromkeys(self._readers, result)
            self._let_go()
        return self._unread.pop(id(reader))

    def cancel(self) -> None:
        """End a warm-up, or a recording, without a result."""
        self._unread.clear()
        if self._profile is not None:
            if not self._started:  # torch can take back a prepared session only by running it
                self._profile.start_trace()
            self._profile.stop_trace()
            _break_cycle(self._profile)
            self._let_go()

    def _let_go(self) -> None:
        observer = self._profile.execution_trace_observer if self._profile is not None else None
        if observer is not None:
            observer.cleanup()
        self._profile, self._started = None, False
        self._readers = set()

    def __enter__(self) -> KinetoRecorder:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.result = self.stop()


def _break_cycle(profile: torch.profiler.profile) -> None:
    """Let the events, hundreds of MB, go with the last who reads them, and not with some later garbage collection.

    The schedule's actions, of no use any more, are methods that hold their object (private in torch; 2.6 to 2.7).
    """
    getattr(profile, 'action_map', {}).clear()


def _available_activities() -> list[ProfilerActivity]:
    """What torch can record on this machine; a CUDA build without a device would warn of it at every window."""
    activities = torch.profiler.supported_activities()
    if not torch.cuda.is_available():
        activities = activities - {ProfilerActivity.CUDA}
    return sorted(activities, key=lambda activity: activity.name)


def export_trace(result: KinetoResult, path: Path) -> None:
    """Write a Chrome trace, which TensorBoard, Perfetto and chrome://tracing read."""
    result.profile.export_chrome_trace(str(path))
    if not path.exists():  # torch logs what kept it from writing, and goes on
        raise OSError('torch could not write the trace; the disk may be full')
    _forget_path(path)


def _forget_path(path: Path) -> None:
    """torch writes the path that it was given near the trace's end; this one is temporary, and nobody else's to know."""
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


def summarize(result: KinetoResult, sort_by: str, row_limit: int) -> str:
    """torch's table of ``key_averages``: ``row_limit`` operators, the largest by ``sort_by`` first."""
    return result.profile.key_averages().table(sort_by=sort_by, row_limit=row_limit)


@dataclass(frozen=True)
class MemoryTimeline:
    """Memory of one device over time.

    Args:
        device (str): as torch prints it.
        times_us (Sequence[float]): microseconds from the first event.
        sizes (Mapping[str, Sequence[int]]): bytes of each category at each time.
    """

    device: str
    times_us: Sequence[float]
    sizes: Mapping[str, Sequence[int]]

    @property
    def peak_bytes(self) -> int:
        return max((sum(row) for row in zip(*self.sizes.values())), default=0)


def memory_timeline(result: KinetoResult, device: str) -> MemoryTimeline:
    """Memory by torch's own categories, from its private ``_memory_profiler`` (checked on 2.6 to 2.7).

    Needs ``record_shapes``, ``profile_memory`` and ``with_stack``.
    """
    from torch.profiler._memory_profiler import _CATEGORY_TO_INDEX, MemoryProfileTimeline

    times, rows = MemoryProfileTimeline(result.profile._memory_profile())._coalesce_timeline(device)
    names = {
        index + 1: 'unknown' if category is None else category.name.lower()
        for category, index in _CATEGORY_TO_INDEX.items()
    }
    start = times[0] if times else 0
    return MemoryTimeline(
        device,
        [time - start for time in times],
        {name: [row[index] for row in rows] for index, name in sorted(names.items())},
    )
