"""The life cycle that all profiling callbacks share: from Composer's events to the start and the end of a recording.

A subclass says how to start and stop a recording; when that happens is decided here. The training comes first: after
INIT nothing raises into it.
"""

from __future__ import annotations

import enum
import weakref
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Optional

from composer.core import Callback, Event, State
from composer.loggers import Logger
from composer.utils import dist
from typing_extensions import Unpack

from composer_memprof import signals
from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.store import ArtifactStore, Part, fork_next_writer, hand_over_windows
from composer_memprof.artifacts.uploading.destinations import Destination
from composer_memprof.artifacts.writing.child.file_descriptors import explained
from composer_memprof.artifacts.writing.child.memory import exclude_from_children
from composer_memprof.artifacts.writing.failures import is_lost_folder
from composer_memprof.callbacks.framework.closing import closing, closing_line
from composer_memprof.callbacks.framework.metrics import Repeats, WindowMetrics
from composer_memprof.callbacks.framework.options import (
    WAIT,
    SharedParameters,
    default_of,
    parse_output,
    parse_when,
    raise_with_name,
)
from composer_memprof.callbacks.framework.run_checks import check_output, check_ranks
from composer_memprof.callbacks.framework.uploads import ask_store, check_uploads, destination_for
from composer_memprof.callbacks.framework.windows import composer_profiler, exclusive
from composer_memprof.callbacks.framework.windows.exclusive import Obstacle
from composer_memprof.callbacks.framework.windows.short_runs import warn_if_too_short, warn_of_unfinished
from composer_memprof.callbacks.framework.windows.stage_events import StageEvents
from composer_memprof.callbacks.framework.windows.stage_windows import StageWindows
from composer_memprof.messages import errors_logged, log_error, warn
from composer_memprof.recorders.host_memory import host_memory
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.recorders.torch_private import MissingTorchNameError, require
from composer_memprof.report.text.tables.head import StageHead, WindowHead
from composer_memprof.schedule import Schedule
from composer_memprof.signals import holds_signals, uninterrupted


class Life(enum.Enum):
    """The state of a callback during a run. An error leads from any state to DISABLED."""

    IDLE = 'idle'  # → WARMING_UP, RECORDING, SKIPPING
    WARMING_UP = 'warming up'  # the recorder is prepared for the next window → RECORDING, IDLE, SKIPPING
    RECORDING = 'recording'  # a window is open → IDLE, SKIPPING
    SKIPPING = 'skipping'  # the schedule's window is open, but it cannot be recorded → IDLE at its end
    DISABLED = 'disabled'  # for the rest of the run


# Reading a member of an enum takes longer than what most events have to do here.
_IDLE, _WARMING_UP, _RECORDING, _SKIPPING, _DISABLED = Life
_INIT, _FIT_START, _FIT_END, _BATCH_START = Event.INIT, Event.FIT_START, Event.FIT_END, Event.BATCH_START
#: Events after which the training thread may not come again for a long time.
_ENDS = frozenset(map(id, (Event.FIT_END, Event.EVAL_END, Event.PREDICT_END)))


class _NoRoom(Obstacle):
    """Earlier windows, or the training's memory, leave no room for another one."""


class ProfilingCallback(StageEvents):
    """Base of this package's callbacks.

    A subclass implements :meth:`_start`, :meth:`_stop` and :meth:`_cancel`, and what it needs of the other hooks.
    """

    #: The name in the manifest; with ``memprof_`` before it the name in YAML.
    kind: ClassVar[str]
    #: Of the window's main file. A ``filename`` that does not end with it counts by its last part: ``.json``.
    suffix: ClassVar[str] = '.json'
    #: The schedule unless the user gives one.
    default_schedule: ClassVar[Schedule]
    #: Whether a window is a few figures, so that any number may wait to be written.
    windows_are_small: ClassVar[bool] = False
    #: The modules of ``recorders.torch_private`` that its recorder needs, by what needs them; ``''`` for always.
    torch_needs: ClassVar[Mapping[str, tuple[ModuleType, ...]]] = {}
    #: Of ``exclusive``: what a recording needs for itself. Settled at INIT.
    resources: frozenset[str] = frozenset()
    #: The session of torch's profiler that it records with, if any; callbacks with equal windows share one.
    kineto: Optional[KinetoRecorder] = None

    _events: ClassVar[frozenset[int]] = frozenset()

    def __init_subclass__(cls) -> None:
        # An event that the class does not handle costs a look-up, not a call. By identity: hashing and comparing
        # Composer's enums takes longer than what most events have to do here.
        cls._events = frozenset(
            id(event) for event in Event if getattr(cls, event.value, None) is not getattr(Callback, event.value, None)
        )

    def __init__(
        self,
        *,
        suffix: Optional[str] = None,
        default_schedule: Optional[Schedule] = None,
        **shared: Unpack[SharedParameters],
    ) -> None:
        self.when = parse_when(shared, default_schedule or self.default_schedule)
        self.output = parse_output(shared, self._suffix_of(shared['filename']) if suffix is None else suffix)
        self._store: Optional[ArtifactStore] = None
        self._forget_run()

    def _suffix_of(self, filename: object) -> str:
        """``suffix`` if the filename ends with it, else the last part of it."""
        ends = isinstance(filename, str) and filename.endswith(self.suffix)
        return self.suffix if ends else f'.{self.suffix.rpartition(".")[2]}'

    def _forget_run(self) -> None:
        self._state: Optional[weakref.ref[State]] = None
        self._life = _IDLE
        self._stage = 'train'  # of the open window
        self._windows = StageWindows(self.when)
        self._fitting = False
        self._folder_lost = False  # set on a background thread; the open window goes on, no other follows
        self._ends_too_early = False  # already warned that the run ends before the first window
        self._warned: set[str] = set()  # what is warned of once a run
        self._obstacle: Optional[Obstacle] = None  # why the last window that was due is not recorded
        self._window_metrics = WindowMetrics()
        self._repeats = Repeats()

    # -- hooks for subclasses -------------------------------------------------------------------------------------

    def _torch_needs(self, state: State) -> tuple[ModuleType, ...]:
        """Those of ``torch_needs`` that this run needs."""
        del state  # some depend on the device
        return self.torch_needs.get('', ())

    def _check(self, state: State) -> None:
        """At INIT: settle what depends on the run, and refuse what can't work (a ValueError)."""

    def _prepare(self, state: State) -> None:
        """Before a window: warm the recorder up."""

    @abstractmethod
    def _start(self, state: State, stamp: Stamp) -> None:
        """Start to record."""

    @abstractmethod
    def _stop(self, state: State, stamp: Stamp) -> None:
        """Stop recording and hand the files to the store."""

    def _cancel(self) -> None:
        """End a warm-up, or a recording, without a result."""

    def _batch_begins(self, state: State) -> None:
        """A batch of the open window begins."""

    def _batch_ended(self, state: State) -> None:
        """A batch of the open window has ended."""

    def _fit_failed(self, state: State) -> None:
        """At the close, or before the next fit: the last fit did not reach its end."""

    def _before_close(self) -> None:
        """At the close, after the last window: hand over files that were not complete before."""

    def _on_removed(self, paths: list[Path]) -> None:
        """Called on a background thread after retention removed a window's files."""

    # -- for ``exclusive`` and for subclasses ---------------------------------------------------------------------

    def yield_resources(self) -> bool:
        """Release the resources for another callback's window. False: they are needed here."""
        return False

    @property
    def session(self) -> object:
        """The owner of its resources: callbacks that share a session return the same object."""
        return self.kineto or self

    @property
    def is_recording(self) -> bool:
        """Whether a window is open and recorded."""
        return self._life is _RECORDING

    @property
    def store(self) -> ArtifactStore:
        assert self._store is not None, 'the store exists from INIT to the close'
        return self._store

    @property
    def folder_path(self) -> Path:
        """The run's folder of this callback, from INIT on."""
        return self.store.folder

    def flush(self, timeout: float = 60.0) -> bool:
        """Wait until the files of all windows that have ended are written. Uploads are not waited for.

        Call it after ``fit()`` to read the files before the Trainer is closed.

        Args:
            timeout (float): seconds to wait at most. Default: ``60.0``.

        Returns:
            bool: whether they are written.
        """
        return self._store is None or self._store.flush(timeout)

    def records_for(self, state: State) -> bool:
        """Whether it records the training of ``state``."""
        return self._state is not None and self._state() is state

    def end_abandoned_recording(self) -> None:
        """Save and end a recording whose training failed and whose Trainer was never closed."""
        state = self._state() if self._state is not None else None
        try:
            if state is not None and self._store is not None:
                self._end_failed_fit(state)
                self._finish_if_recording(state)
            self._cancel_warmup()
        except Exception as error:
            self._disable(error)

    def _head(self, state: State) -> WindowHead:
        """The first fields of a window's report."""
        return WindowHead(dist.get_global_rank(), state.timestamp.epoch.value, state.timestamp.batch.value)

    def _stage_head(self, state: State) -> StageHead:
        """The first fields of a report of one stage."""
        return StageHead(**asdict(self._head(state)), stage=self._stage)

    def _metric_group(self, name: str, stage: str) -> str:
        """The first part of metrics' names; evaluation and prediction have their own if several stages are recorded."""
        return name if stage == 'train' or len(self.when.stages) == 1 else f'{name}/{stage}'

    @classmethod
    def why_unavailable(cls) -> list[str]:
        """What cannot be recorded with the installed torch, and why: ``memory_filename: torch 2.16 has no …``."""
        reasons = []
        for what, modules in cls.torch_needs.items():
            try:
                require(*modules)
            except MissingTorchNameError as error:
                reasons.append(f'{what}: {error}' if what else str(error))
        return reasons

    def may_run_on(self, rank: int) -> bool:
        """Whether ``rank`` can ever record."""
        return self.when.may_run_on(rank)

    def earlier_callbacks(self, state: State) -> list[ProfilingCallback]:
        """This package's callbacks that come before it in the Trainer."""
        before = state.callbacks[: state.callbacks.index(self)] if self in state.callbacks else []
        return [other for other in before if isinstance(other, ProfilingCallback)]

    # -- events ---------------------------------------------------------------------------------------------------

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        if id(event) in self._events:
            self._handle(event, state, logger)
        if id(event) in _ENDS and not self._fitting:
            signals.release(self)
        if signals.waiting:  # from here its exception goes to Composer, and on to the user
            signals.pass_on()

    @holds_signals
    def _handle(self, event: Event, state: State, logger: Logger) -> None:
        signals.refresh()
        if self._life is _DISABLED and event is not _INIT and event is not _FIT_END:
            if event is _BATCH_START:
                with errors_logged('the next window could not be handed over'):
                    fork_next_writer()  # earlier windows may wait for it
            return
        try:
            super().run_event(event, state, logger)
        except ValueError as error:
            if event is _INIT or event is _FIT_START:  # a setting that does not fit the run
                raise_with_name(type(self).__name__, error)
            self._disable(error)
        except Exception as error:
            if event is _INIT:
                raise
            self._disable(error)
        if id(event) in _ENDS and not self._fitting:
            with errors_logged('windows could not be handed over'):
                hand_over_windows()

    def init(self, state: State, logger: Logger) -> None:
        self._close_run(state)
        self._forget_run()
        self._state = weakref.ref(state)
        exclude_from_children(state, lambda state: host_memory(state.model, state.optimizers))
        check_ranks(self.when)
        folder = check_output(self.output, state)
        destination = destination_for(self.output, logger)
        try:
            require(*self._torch_needs(state))
        except MissingTorchNameError as error:  # disables this callback alone: the others may not need the name
            self._open_store(folder, destination)
            self._disable(error)
        else:
            self._check_run(state)
            self._open_store(folder, destination)
            self._check_uploads(destination, state)

    def _check_run(self, state: State) -> None:
        self._check(state)
        self._windows = StageWindows(self.when)  # the check may have chosen another schedule
        if exclusive.KINETO in self.resources and composer_profiler.is_present(state):
            composer_profiler.explain(type(self).__name__)
        exclusive.refuse_overlap(self, self.earlier_callbacks(state))

    def _check_uploads(self, destination: Optional[Destination], state: State) -> None:
        is_default = self.output.naming.remote == default_of(type(self), 'remote_file_name')
        check_uploads(type(self).__name__, self.output, destination, is_default=is_default)
        ask_store(self.output, state)

    def _open_store(self, folder: Path, destination: Optional[Destination]) -> None:
        self._store = ArtifactStore(
            folder,
            self.output.naming,
            destination,
            overwrite=self.output.overwrite,
            keep=self.output.num_artifacts_to_keep,
            waits_for_room=self.output.on_full == WAIT,
            on_failure=lambda error: setattr(self, '_folder_lost', True),
            on_removed=self._on_removed,
        )
        closing.will_close(self, self.output.close_timeout)

    def fit_start(self, state: State, logger: Logger) -> None:
        del logger  # unused
        signals.hold(self)
        self._end_failed_fit(state)
        self._finish_if_recording(state)  # of the fit that failed
        if self.when.stages == {'eval'} and not state.evaluators:
            warn(f"{type(self).__name__} records nothing in this fit: stages=['eval'], and there is no eval_dataloader")
        is_recorded = self._windows.start_training(state)
        self._fitting = True
        if is_recorded:
            self._ends_too_early = warn_if_too_short(type(self).__name__, self.when.schedule, state)

    def batch_end(self, state: State, logger: Logger) -> None:
        super().batch_end(state, logger)
        if self._window_metrics:
            self._window_metrics.log(logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        super().eval_end(state, logger)
        if not self._fitting:  # inside a fit the console would show a training window's metrics as the evaluation's
            self._window_metrics.log(logger)

    def predict_end(self, state: State, logger: Logger) -> None:
        super().predict_end(state, logger)
        self._window_metrics.log(logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        self._fitting = False
        if self.is_recording:
            self._warn_of_unfinished(state)
            self._finish(state)
        elif 'train' in self._windows and not self._windows.has_opened('train'):
            self._warn_of_unfinished(state)
            if self._obstacle is not None:
                self.store.list_skipped(self._main_part(), self._windows.stamp('train', state), self._obstacle.reason)
        self._cancel_warmup()
        self.store.warn_of_left_out()
        self._window_metrics.log(logger)

    def close(self, state: State, logger: Logger) -> None:
        closing.defer_signals(state)
        signals.hold(self)
        try:
            self._close_run(state)
        finally:
            signals.release(self)
            signals.pass_on()
        self._window_metrics.log_at_close(logger, state.timestamp.batch.value)

    def close_late(self, *, save: bool) -> None:
        """At interpreter exit, because its close was skipped: save the open window, or only end the recording."""
        state = self._state() if self._state is not None else None
        if save and state is not None:
            self._close_run(state)
        else:
            self._drop_recording()

    def _end_failed_fit(self, state: State) -> None:
        if self._fitting:
            self._fitting = False
            self._fit_failed(state)

    @holds_signals
    def _close_run(self, state: State) -> None:
        if self._store is None:
            return
        try:
            self._end_failed_fit(state)
            self._finish_if_recording(state)
            self._cancel_warmup()
            self._before_close()
        except Exception as error:  # the other callbacks are still to be closed
            self._disable(error)
        finally:
            with errors_logged('cleaning up failed too'):
                self.yield_resources()
        store, self._store = self._store, None
        closing.is_closed(self)
        store.close(self.output.close_timeout)
        closing_line.add_files(store.folder, store.count_files())
        self._windows = StageWindows(self.when)

    # -- windows --------------------------------------------------------------------------------------------------

    def _before_batch(self, stage: str, state: State) -> None:
        fork_next_writer()
        if stage not in self._windows:
            return
        if self._folder_lost and not self.is_recording:
            self._cancel_warmup()
            self._life = _DISABLED
            self.yield_resources()
            return
        phase = self._windows.before_batch(stage)
        if self.is_recording:
            if self._stage != stage:  # an evaluation inside an open training window is part of it
                return
            if phase.joined:
                self._batch_begins(state)
                return
            self._finish(state)
        if self._life is _SKIPPING and not phase.joined:
            self._life = _IDLE
        if phase.active:
            if self._life is not _SKIPPING:
                self._begin(stage, state)
        elif not phase.warmup:
            self._cancel_warmup()
        elif self._life is _IDLE:
            self._warm_up(state)

    def _after_batch(self, stage: str, state: State) -> None:
        if not self.is_recording:
            if self._life is _WARMING_UP and self._must_yield(state):
                self._cancel_warmup()
            return
        if self._stage == stage:  # otherwise an evaluation inside an open training window
            self._batch_ended(state)
        self._finish_if_over(stage, state)
        if self.is_recording and self._must_yield(state):
            self._finish(state)
            self._life = _SKIPPING

    def _after_epoch(self, state: State) -> None:
        self._finish_if_over('train', state)

    def _finish_if_over(self, stage: str, state: State) -> None:
        if self.is_recording and self._stage == stage and self._windows.is_over(stage):
            self._finish(state)

    def _finish_if_recording(self, state: State) -> None:
        if self.is_recording:
            self._finish(state)

    def _start_pass(self, stage: str, state: State) -> None:
        signals.hold(self)
        self._windows.start_pass(stage, state)

    def _end_stage_batch(self, stage: str, state: State, timestamp: Any) -> None:
        if stage in self._windows:
            self._windows.end_batch(stage, timestamp)
            self._after_batch(stage, state)

    def _end_pass(self, stage: str, state: State) -> None:
        if stage not in self._windows:
            return
        self._windows.end_pass(stage)
        if self.is_recording and self._stage == stage:
            self._finish(state)  # the rest of the window comes with the next pass, in a file of its own

    # -- recordings -----------------------------------------------------------------------------------------------

    def _warm_up(self, state: State) -> None:
        if self._claim(state):
            self._life = _WARMING_UP
            self._prepare(state)

    def _begin(self, stage: str, state: State) -> None:
        if not self._claim(state):
            self._cancel_warmup()
            self._miss_window(stage, state)
            return
        with uninterrupted():
            self._life = _RECORDING
            self._stage = stage
            self._start(state, self._windows.stamp(stage, state))
            self._batch_begins(state)

    def _miss_window(self, stage: str, state: State) -> None:
        """Skip a window that can't be recorded now. The last one is postponed: tried again before each batch."""
        again = self.when.schedule.without_skip()
        if again is None:
            self._life = _SKIPPING
            if self._obstacle is not None:
                self.store.leave_out(self._main_part(), self._windows.stamp(stage, state), self._obstacle.reason)
        else:
            self._windows.postpone(stage, again, state)

    def _main_part(self) -> Part:
        """The main file of a window that is left out."""
        return Part(self.kind, self.output.naming.suffix, lambda path: None, self.output.compress)

    def _finish(self, state: State) -> None:
        """Save the open window."""
        with uninterrupted():
            self._life = _IDLE
            try:
                self._stop(state, self._windows.stamp(self._stage, state))
            except Exception:
                with errors_logged('cleaning up failed too'):
                    self._cancel()
                raise
            finally:
                exclusive.release(self, self.session)

    def _cancel_warmup(self) -> None:
        if self._life is _WARMING_UP:
            self._life = _IDLE
            self._cancel()
            exclusive.release(self, self.session)

    def _claim(self, state: State) -> bool:
        """Whether a window can be recorded now; if not, one warning says why."""
        self._obstacle = self._find_obstacle(state)
        is_clash = self._obstacle is not None and not isinstance(self._obstacle, _NoRoom)
        if is_clash and 'clash' not in self._warned:
            self._warned.add('clash')
            verb = 'postpones its' if self.when.schedule.without_skip() is not None else 'skips a'
            warn(f'{type(self).__name__} {verb} window at batch {state.timestamp.batch.value}: {self._obstacle}')
        return self._obstacle is None

    def _find_obstacle(self, state: State) -> Optional[Obstacle]:
        reason = None if self.windows_are_small else self.store.why_no_room()
        if reason is not None:
            return _NoRoom(reason, 'Leave more time between windows')
        if not self.resources:
            return None
        if self._must_yield(state):
            return exclusive.held_by("Composer's TorchProfiler")
        return exclusive.claim(self, state)

    def _must_yield(self, state: State) -> bool:
        return exclusive.KINETO in self.resources and composer_profiler.wants_batch(state)

    def _turn_off(self, reason: str) -> None:
        """Before the first batch: warn that nothing can be recorded in this run, and why."""
        warn(f'{type(self).__name__} records nothing: {reason}')
        self._life = _DISABLED

    def _disable(self, error: BaseException) -> None:
        """Record nothing for the rest of the run; the training continues."""
        name = type(self).__name__
        log_error(f'{name} failed', error)
        if self._store is not None and is_lost_folder(error):
            self._store.report_lost_folder(error)  # one warning for all callbacks
        elif self._life is not _DISABLED and not self._folder_lost:
            what = f'{type(error).__name__}: {explained(error)}'
            warn(f'{name} is disabled for the rest of this run: {what}. Training continues')
        self._drop_recording()

    def _drop_recording(self) -> None:
        """End what runs without a result, and record nothing for the rest of the run."""
        busy = self._life in (_RECORDING, _WARMING_UP)
        self._life = _DISABLED
        if busy:
            with errors_logged('cleaning up failed too'):
                self._cancel()
        with errors_logged('cleaning up failed too'):
            self.yield_resources()
        exclusive.release(self, self.session)

    def _warn_of_unfinished(self, state: State) -> None:
        silent = self._life is _DISABLED or self._folder_lost or self._ends_too_early
        if not silent and self.when.schedule.ends_by_itself:
            batch = state.timestamp.batch.value
            warn_of_unfinished(type(self).__name__, batch, inside=self.is_recording, obstacle=self._obstacle)
