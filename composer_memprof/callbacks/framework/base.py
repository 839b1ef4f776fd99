"""What all profiling callbacks share: parameters, windows bound to Composer's events, and stepping aside.

A subclass says how to begin and end a recording; when, and where the files go, is settled here. The training comes
first: after INIT nothing raises into it.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional, Union

from composer.core import Callback, Event, State, TimeUnit
from composer.loggers import Logger
from composer.utils import dist

from composer_memprof.artifacts.destinations import (
    Destination,
    FsspecDestination,
    LoggerDestination,
    check_scheme,
    scheme_of,
)
from composer_memprof.artifacts.names import (
    RUN_VARIABLES,
    TIME_VARIABLES,
    Naming,
    Stamp,
    check_run_name,
    check_template,
    folder_of,
)
from composer_memprof.artifacts.store import ArtifactStore, fork_next_writer
from composer_memprof.callbacks.framework import composer_profiler, exclusive
from composer_memprof.messages import warn
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.schedule import Schedule, window
from composer_memprof.schedule.base import ScheduleInput
from composer_memprof.schedule.clocks import StageClock, TrainClock
from composer_memprof.schedule.driver import ScheduleDriver
from composer_memprof.schedule.overlap import first_common_batch
from composer_memprof.schedule.parsing import check_units, parse_ranks, parse_schedule, parse_stages
from composer_memprof.signals import uninterrupted

Ranks = Union[int, Sequence[int], None]
Stages = Union[str, Sequence[str]]


@dataclass(frozen=True)
class When:
    """Which batches of which stages on which ranks are recorded. ``ranks`` None: on all."""

    schedule: Schedule
    ranks: Optional[frozenset[int]]
    stages: frozenset[str]


def when(schedule: Optional[ScheduleInput], default: Schedule, ranks: Ranks, stages: Stages) -> When:
    """Settle the parameters that say when, which partly say one thing.

    Raises:
        ValueError: if one can't be read, or two of them disagree.
    """
    parsed = parse_schedule(schedule if schedule is not None else default)
    own_ranks = None if ranks is None else parse_ranks(ranks, 'ranks')
    own_stages = parse_stages(stages, 'stages')
    if own_ranks is not None and parsed.ranks is not None and own_ranks != parsed.ranks:
        raise ValueError(
            f'ranks={sorted(own_ranks)} and schedule.ranks={sorted(parsed.ranks)} differ; give one of them'
        )
    if parsed.stages is not None and own_stages not in (parsed.stages, {'train'}):
        raise ValueError(
            f'stages={sorted(own_stages)} and schedule.stages={sorted(parsed.stages)} differ; give one of them'
        )
    settled = When(parsed.schedule, own_ranks or parsed.ranks, parsed.stages or own_stages)
    check_units(settled.schedule, settled.stages)
    return settled


@dataclass(frozen=True)
class Output:
    """Where the files of a callback go, as the user gave it; checked when made.

    Raises:
        ValueError: naming the parameter, the value and what is allowed.
    """

    folder: str
    naming: Naming
    storage_options: Optional[Mapping[str, Any]]
    overwrite: bool
    num_artifacts_to_keep: int
    compress: bool
    close_timeout: float

    def __post_init__(self) -> None:
        for name in ('overwrite', 'compress'):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f'{name}={getattr(self, name)!r} is not allowed; it is true or false')
        check_template(self.folder, 'folder', RUN_VARIABLES)
        check_naming(self.naming)
        keep = self.num_artifacts_to_keep
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < -1:
            raise ValueError(f'num_artifacts_to_keep={keep!r} is not allowed; -1 keeps all, otherwise 0 or more')
        if keep == 0 and self.naming.remote is None:
            raise ValueError('num_artifacts_to_keep=0 with remote_file_name=None would keep nothing anywhere')
        if not isinstance(self.close_timeout, (int, float)) or not 0 <= self.close_timeout < 86400:
            raise ValueError(f'close_timeout={self.close_timeout!r} is not allowed; it is in seconds, from 0')
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            raise ValueError(f'storage_options must be a mapping, not a {type(self.storage_options).__name__}')


def check_naming(naming: Naming, prefix: str = '') -> None:
    """Refuse names that can't be formed, or stores that can't be reached.

    Raises:
        ValueError: naming the parameter (``prefix`` before it), the value and what is allowed.
    """
    every_variable = RUN_VARIABLES + TIME_VARIABLES
    check_template(naming.filename, f'{prefix}filename', every_variable)
    if os.path.isabs(naming.filename) or '..' in Path(naming.filename).parts:
        raise ValueError(f'{prefix}filename={naming.filename!r} leaves its folder; it must be relative, without ..')
    if naming.remote is not None:
        check_template(naming.remote, f'{prefix}remote_file_name', every_variable)
        check_scheme(naming.remote, f'{prefix}remote_file_name')


@dataclass(frozen=True)
class _Recording:
    stage: str


class ProfilingCallback(Callback):
    """Base of this package's callbacks.

    A subclass implements :meth:`_start` and :meth:`_stop`, and what it needs of the other hooks.
    """

    #: The name in the manifest.
    kind: ClassVar[str]
    #: Of ``exclusive``: what a recording of this one takes for itself. Settled at INIT.
    resources: frozenset[str] = frozenset()
    #: The session of torch's profiler that it records with, where it does; partners share one.
    kineto: Optional[KinetoRecorder] = None

    _events: ClassVar[frozenset[int]] = frozenset()

    def __init_subclass__(cls) -> None:
        # An event that the class does not handle costs it a look-up, not a call. By identity: hashing and comparing
        # Composer's enums takes longer than what most events have to do here.
        cls._events = frozenset(
            id(event) for event in Event if getattr(cls, event.value, None) is not getattr(Callback, event.value, None)
        )

    def __init__(self, when: When, output: Output) -> None:
        self.when = when
        self.output = output
        self._store: Optional[ArtifactStore] = None
        self._forget_run()

    def _forget_run(self) -> None:
        self._state: Optional[weakref.ref[State]] = None
        self._windows: dict[str, ScheduleDriver] = {}
        self._recording: Optional[_Recording] = None
        self._warm = False
        self._fitting = False
        self._missing_window = False
        self._stepped_aside = False
        self._warned_of_clash = False
        self._warned_of_length = False

    # -- for subclasses -----------------------------------------------------------------------------------------

    def _check(self, state: State) -> None:
        """At INIT: settle what depends on the run, and refuse what can't work (a ValueError)."""

    def _prepare(self, state: State) -> None:
        """Before a window: let the recorder warm up."""

    @abstractmethod
    def _start(self, state: State, stamp: Stamp) -> None:
        """Begin to record."""

    @abstractmethod
    def _stop(self, state: State, stamp: Stamp) -> None:
        """End the recording and hand its files to the store."""

    def _cancel(self) -> None:
        """End a warm-up, or a recording, without a result."""

    def _batch_begins(self, state: State) -> None:
        """A batch of an open window begins."""

    def _batch_ended(self, state: State) -> None:
        """A batch of an open window has ended."""

    def _broke_off(self, state: State) -> None:
        """At the close: the training did not come to its end."""

    def _closing(self) -> None:
        """At the close, after the last window: hand over what came late."""

    def stand_down(self) -> bool:
        """Give the recorder up to another callback that has a window now. False: it is needed here."""
        return False

    @property
    def session(self) -> object:
        """Who holds this callback's resources: those who share a session share this."""
        return self.kineto or self

    @property
    def store(self) -> ArtifactStore:
        assert self._store is not None, 'the store is there from INIT to close'
        return self._store

    @property
    def folder_path(self) -> Path:
        """The run's folder of this callback, from INIT on."""
        return self.store.folder

    def is_at_work_in(self, state: State) -> bool:
        """Whether it records in the training of ``state``."""
        return self._state is not None and self._state() is state

    def break_off(self) -> None:
        """End a recording whose training broke off, for that of another Trainer; what it has is saved."""
        state = self._state() if self._state is not None else None
        try:
            if state is not None and self._store is not None:
                self._end_broken_fit(state)
            if self._recording is not None and state is not None and self._store is not None:
                self._finish(state)
            self._cool_down()
        except Exception as error:
            self._step_aside(error)

    def may_run_on(self, rank: int) -> bool:
        return (self.when.ranks is None or rank in self.when.ranks) and self.when.schedule.may_run_on(rank)

    # -- events -------------------------------------------------------------------------------------------------

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        if id(event) not in self._events:
            return
        try:
            super().run_event(event, state, logger)
        except Exception as error:
            if event is Event.INIT or (event is Event.FIT_START and isinstance(error, ValueError)):
                raise
            self._step_aside(error)

    def init(self, state: State, logger: Logger) -> None:
        self._close_run(state)
        self._forget_run()
        self._state = weakref.ref(state)
        world_size = dist.get_world_size()
        beyond = sorted(r for r in {*(self.when.ranks or ()), *self.when.schedule.named_ranks()} if r >= world_size)
        if beyond:
            raise ValueError(f'ranks={beyond} are beyond this run, which has ranks 0 to {world_size - 1}')
        naming = self.output.naming
        check_run_name(state.run_name, self.output.folder, naming.filename, naming.remote)
        folder = folder_of(self.output.folder, state.run_name)
        check_writable(folder, self.output.folder)
        naming.local(Stamp(state.run_name, state.timestamp), naming.suffix, 1)
        if naming.remote is not None:
            in_store = naming.in_store(Stamp(state.run_name, state.timestamp), naming.suffix, 1, 'x')
            check_scheme(in_store or '', 'remote_file_name')
        self._check(state)
        if exclusive.KINETO in self.resources and composer_profiler.has_composer_torch_profiler(state):
            composer_profiler.explain_composer_profiler(type(self).__name__)
        exclusive.refuse_overlap(self, state)
        self._open_store(folder, self._destination(naming.remote, logger))

    def _open_store(self, folder: Path, destination: Optional[Destination]) -> None:
        self._store = ArtifactStore(
            folder,
            self.output.naming,
            destination,
            overwrite=self.output.overwrite,
            keep=self.output.num_artifacts_to_keep,
            on_failure=lambda error: setattr(self, '_stepped_aside', True),
            on_removed=self._on_removed,
        )

    def _destination(self, remote: Optional[str], logger: Logger) -> Optional[Destination]:
        if remote is None:
            return None
        if scheme_of(remote) is not None:
            return FsspecDestination(self.output.storage_options, self.output.overwrite)
        return LoggerDestination(logger)

    def _on_removed(self, paths: list[Path]) -> None:
        """Told, on a background thread, of the files of a window that retention has removed."""

    def fit_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._end_broken_fit(state)
        if self._recording is not None:  # of the fit that broke off
            self._finish(state)
        self._fitting = True
        if 'train' in self.when.stages and self.may_run_on(dist.get_global_rank()):
            self._windows['train'] = ScheduleDriver(self.when.schedule, TrainClock(state), state)
            self._warn_if_too_short(state)

    def batch_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._before_batch('train', state)

    def batch_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._after_batch('train', state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._end_if_over('train', state)

    def fit_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._fitting = False
        windows = self._windows.get('train')
        if self._recording is not None:
            self._warn_of_unfinished(state, inside=True)
            self._finish(state)
        elif windows is not None and not windows.opened:
            self._warn_of_unfinished(state, inside=False)
        self._cool_down()

    def eval_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._start_pass('eval', state)

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._before_batch('eval', state)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._end_stage_batch('eval', state, state.eval_timestamp)

    def eval_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._end_pass('eval', state)

    def predict_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._start_pass('predict', state)

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._before_batch('predict', state)

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._end_stage_batch('predict', state, state.predict_timestamp)

    def predict_end(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._end_pass('predict', state)

    def close(self, state: State, logger: Logger) -> None:
        del logger  # unused
        self._close_run(state)

    def _end_broken_fit(self, state: State) -> None:
        if self._fitting:
            self._fitting = False
            self._broke_off(state)

    def _close_run(self, state: State) -> None:
        if self._store is None:
            return
        try:
            self._end_broken_fit(state)
            if self._recording is not None:
                self._finish(state)
            self._cool_down()
            self._closing()
        except Exception as error:  # the other callbacks are still to be closed
            self._step_aside(error)
        finally:
            _quietly(self.stand_down)
        store, self._store = self._store, None
        store.close(self.output.close_timeout)
        self._windows = {}

    # -- windows ------------------------------------------------------------------------------------------------

    def _before_batch(self, stage: str, state: State) -> None:
        fork_next_writer()
        windows = self._windows.get(stage)
        if windows is None:
            return
        if self._stepped_aside:
            self._cool_down()
            self.stand_down()
            return
        phase = windows.before_batch()
        if self._recording is not None:
            if self._recording.stage != stage:  # an evaluation inside an open training window is part of it
                return
            if phase.joined:
                self._batch_begins(state)
                return
            self._finish(state)
        if not phase.joined:
            self._missing_window = False
        if phase.active and not self._missing_window:
            self._begin(stage, state)
        elif phase.warmup and not self._warm:
            self._warm_up(state)
        elif self._warm and not phase.warmup:
            self._cool_down()

    def _after_batch(self, stage: str, state: State) -> None:
        if self._recording is None:
            if self._warm and self._must_yield(state):
                self._cool_down()
            return
        self._batch_ended(state)
        self._end_if_over(stage, state)
        if self._recording is not None and self._must_yield(state):
            self._missing_window = True
            self._finish(state)

    def _end_if_over(self, stage: str, state: State) -> None:
        recording = self._recording
        if recording is not None and recording.stage == stage and self._windows[stage].is_over():
            self._finish(state)

    def _start_pass(self, stage: str, state: State) -> None:
        if stage not in self.when.stages or not self.may_run_on(dist.get_global_rank()):
            return
        if stage not in self._windows:
            self._windows[stage] = ScheduleDriver(self.when.schedule, StageClock(state), state)
        self._stage_clock(stage).start_pass()

    def _end_stage_batch(self, stage: str, state: State, timestamp: Any) -> None:
        if stage in self._windows:
            self._stage_clock(stage).end_batch(timestamp)
            self._after_batch(stage, state)

    def _end_pass(self, stage: str, state: State) -> None:
        if stage not in self._windows:
            return
        self._stage_clock(stage).end_pass()
        if self._recording is not None and self._recording.stage == stage:
            self._finish(state)  # what a window still lacks comes with the next pass, in a file of its own

    def _stage_clock(self, stage: str) -> StageClock:
        clock = self._windows[stage].clock
        assert isinstance(clock, StageClock)
        return clock

    def _stamp(self, stage: str, state: State) -> Stamp:
        mark = '' if stage == 'train' else f'.{stage}{int(self._windows[stage].clock.read("ba"))}'
        return Stamp(state.run_name, state.timestamp, mark)

    # -- recordings ---------------------------------------------------------------------------------------------

    def _warm_up(self, state: State) -> None:
        if self._claim(state):
            self._warm = True
            self._prepare(state)

    def _begin(self, stage: str, state: State) -> None:
        if not self._claim(state):
            self._miss_window(stage, state)
            return
        with uninterrupted():
            self._recording = _Recording(stage)
            self._warm = False
            self._start(state, self._stamp(stage, state))
            self._batch_begins(state)

    def _miss_window(self, stage: str, state: State) -> None:
        """A window that can't be had is left out; one that is the last is tried again, batch after batch."""
        again = self.when.schedule.without_skip()
        if again is None:
            self._missing_window = True
        else:
            self._windows[stage] = ScheduleDriver(again, self._windows[stage].clock, state)

    def _finish(self, state: State) -> None:
        with uninterrupted():
            recording, self._recording = self._recording, None
            assert recording is not None
            try:
                self._stop(state, self._stamp(recording.stage, state))
            except Exception:
                _quietly(self._cancel)
                raise
            finally:
                exclusive.release(self.session)

    def _cool_down(self) -> None:
        if self._warm:
            self._warm = False
            self._cancel()
            exclusive.release(self.session)

    def _claim(self, state: State) -> bool:
        """Whether a window can be recorded now; if not, one warning says what stands in its way."""
        obstacle = self._obstacle(state)
        if obstacle is not None and not self._warned_of_clash:
            self._warned_of_clash = True
            batch = state.timestamp.batch.value
            last = self.when.schedule.without_skip() is not None
            does = 'puts off its window' if last else 'leaves out a window'
            warn(f'{type(self).__name__} {does} at batch {batch}, because {obstacle}')
        return obstacle is None

    def _obstacle(self, state: State) -> Optional[str]:
        if not self.resources:
            return None
        if not self.store.has_room():
            return 'earlier windows are still being written; let them be farther apart'
        holder = "Composer's TorchProfiler" if self._must_yield(state) else exclusive.claim(self, state)
        return f'{holder} is recording; give them windows apart from each other' if holder is not None else None

    def _must_yield(self, state: State) -> bool:
        return exclusive.KINETO in self.resources and composer_profiler.composer_wants_batch(state)

    def _step_aside(self, error: BaseException) -> None:
        """The training goes on without this callback."""
        if not self._stepped_aside:
            warn(f'{type(self).__name__} steps aside, the training goes on without it; {type(error).__name__}: {error}')
        self._stepped_aside = True
        busy = self._recording is not None or self._warm
        self._recording, self._warm = None, False
        if busy:
            _quietly(self._cancel)
        _quietly(self.stand_down)
        exclusive.release(self.session)

    def _warn_if_too_short(self, state: State) -> None:
        """Say now, where it can be known, that training will end before the first window."""
        first = first_common_batch(self.when.schedule, window('1ba', every='1ba'), [dist.get_global_rank()])
        left = _batches_left(state)
        if first is not None and left is not None and 0 < left <= first:
            self._warned_of_length = True
            warn(
                f'{type(self).__name__} will record nothing: its first window comes after {first} batches of {left}; make skip shorter'
            )

    def _warn_of_unfinished(self, state: State, *, inside: bool) -> None:
        if self._stepped_aside or self._warned_of_length or not self.when.schedule.ends_by_itself:
            return
        name, batch = type(self).__name__, state.timestamp.batch.value
        if inside:
            warn(f'the run ended at batch {batch} inside a window of {name}; what was recorded is saved')
        else:
            warn(f'the run ended at batch {batch} before the first window of {name}; make skip or the window shorter')


def _batches_left(state: State) -> Optional[int]:
    """From here to the end of training, where that is known in batches."""
    end, length = state.max_duration, state.dataloader_len
    done = state.timestamp.batch.value
    if end is None or end.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH):
        return None
    if end.unit == TimeUnit.BATCH:
        return int(end.value) - done
    return None if length is None else int(end.value * length.value) - done


def _quietly(action: Callable[[], object]) -> None:
    """Clean up after an error; a second one would say nothing new."""
    try:
        action()
    except Exception:
        pass


def check_writable(folder: Path, template: str) -> None:
    """Refuse a folder that can't be written to, without leaving anything in it.

    Raises:
        ValueError: naming the folder and what is wrong with it.
    """
    nearest = folder.absolute()
    try:
        while not nearest.exists():
            nearest = nearest.parent
        if not nearest.is_dir():
            raise NotADirectoryError(f'{nearest} is not a folder')
        with tempfile.TemporaryFile(prefix='.memprof-', dir=nearest):
            pass
    except OSError as error:
        raise ValueError(f'folder={template!r}: nothing can be written to {str(folder)!r}: {error}') from error
