"""The life cycle that all profiling callbacks share, from Composer's INIT to the close.

``life`` has its states, ``hooks`` what a subclass fills in, ``windows.recording`` when a recording starts and stops. The
training comes first: after INIT nothing raises into it.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Optional

from composer.core import Callback, Event, State
from composer.loggers import Logger
from typing_extensions import Unpack

from composer_memprof import signals
from composer_memprof.artifacts.store import ArtifactStore, fork_next_writer, hand_over_windows
from composer_memprof.artifacts.uploading.destinations import Destination
from composer_memprof.artifacts.writing.child.file_descriptors import explained
from composer_memprof.artifacts.writing.child.memory import exclude_from_children
from composer_memprof.artifacts.writing.failures import is_lost_folder
from composer_memprof.callbacks.framework import hooks
from composer_memprof.callbacks.framework.closing import closing, closing_line
from composer_memprof.callbacks.framework.closing.run_end import RunEnd, run_end
from composer_memprof.callbacks.framework.life import DISABLED
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
from composer_memprof.callbacks.framework.windows.recording import WindowRecording
from composer_memprof.callbacks.framework.windows.short_runs import warn_if_too_short
from composer_memprof.callbacks.framework.windows.stage_windows import StageWindows
from composer_memprof.messages import errors_logged, log_error, warn
from composer_memprof.recorders.host_memory import host_memory
from composer_memprof.recorders.torch_private import MissingTorchNameError, require
from composer_memprof.schedule import Schedule
from composer_memprof.signals import holds_signals

# Reading a member of an enum takes longer than what most events have to do.
_INIT, _FIT_START, _FIT_END, _BATCH_START = Event.INIT, Event.FIT_START, Event.FIT_END, Event.BATCH_START
#: Events after which the training thread may not come again for a long time.
_ENDS = frozenset(map(id, (Event.FIT_END, Event.EVAL_END, Event.PREDICT_END)))


class ProfilingCallback(WindowRecording):
    """Base of this package's callbacks.

    A subclass implements :meth:`_start`, :meth:`_stop` and :meth:`_cancel`, and what it needs of the other hooks.
    """

    _events: dict[int, str] = {}
    #: Of these, the events that concern only a recorder. Outside of windows they cost a look-up too.
    _events_of_recorder: frozenset[int] = frozenset()
    #: In a forked child, of a run of its parent.
    _is_parents = False

    def __init_subclass__(cls) -> None:
        # An event that the class does not handle costs a look-up, not a call. By identity, and with its name: hashing
        # Composer's enums, or asking for their values, takes longer than what most events have to do.
        cls._events = {
            id(event): event.value
            for event in Event
            if getattr(cls, event.value, None) is not getattr(Callback, event.value, None)
        }
        of_recorder = (number for number, name in cls._events.items() if hooks.is_of_recorder(getattr(cls, name)))
        cls._events_of_recorder = frozenset(of_recorder)

    def __init__(
        self,
        *,
        suffix: Optional[str] = None,
        default_schedule: Optional[Schedule] = None,
        **shared: Unpack[SharedParameters],
    ) -> None:
        self.when = parse_when(shared, default_schedule or self.default_schedule)
        self.output = parse_output(shared, self._suffix_of(shared['filename']) if suffix is None else suffix)
        self._forget_run()

    def _suffix_of(self, filename: object) -> str:
        """``suffix`` if the filename ends with it, else the last part of it."""
        ends = isinstance(filename, str) and filename.endswith(self.suffix)
        return self.suffix if ends else f'.{self.suffix.rpartition(".")[2]}'

    def _forget_run(self) -> None:
        self._forget_windows()
        self._state: Optional[weakref.ref[State]] = None
        self._fitting = False
        #: How the fits of this Trainer end, for the manifest; None without a Trainer.
        self._run_end: Optional[RunEnd] = None
        self._window_metrics = WindowMetrics()
        self._repeats = Repeats()

    # -- for ``exclusive`` and for subclasses ---------------------------------------------------------------------

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
        return self._store is None or self._is_parents or self._store.flush(timeout)

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

    def leave_to_parent(self) -> None:
        """In a forked child: the run, its files and its recording are the parent's. Only a run of the child is recorded."""
        self._is_parents = True
        self._events = {id(_INIT): _INIT.value}

    def _forget_parent(self) -> None:
        self._drop_recording()
        self._store = None
        self._is_parents = False
        del self._events

    def may_run_on(self, rank: int) -> bool:
        """Whether ``rank`` can ever record."""
        return self.when.may_run_on(rank)

    def earlier_callbacks(self, state: State) -> list[ProfilingCallback]:
        """This package's callbacks that come before it in the Trainer."""
        before = state.callbacks[: state.callbacks.index(self)] if self in state.callbacks else []
        return [other for other in before if isinstance(other, ProfilingCallback)]

    # -- events ---------------------------------------------------------------------------------------------------

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        method = self._events.get(id(event))
        is_of_recorder = id(event) in self._events_of_recorder
        if method is not None and not (is_of_recorder and (self._life is DISABLED or not self.has_recorder)):
            self._handle(event, method, state, logger)
        if id(event) in _ENDS and not self._fitting:
            signals.release(self)
        if signals.waiting:  # from here its exception goes to Composer, and on to the user
            signals.pass_on()

    @holds_signals
    def _handle(self, event: Event, method: str, state: State, logger: Logger) -> None:
        signals.refresh()
        if self._life is DISABLED and event is not _INIT and event is not _FIT_END:
            if event is _BATCH_START:
                with errors_logged('the next window could not be handed over'):
                    fork_next_writer()  # earlier windows may wait for it
            return
        try:
            getattr(self, method)(state, logger)
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
        if self._is_parents:
            self._forget_parent()
        self._close_run(state)
        self._forget_run()
        self._state = weakref.ref(state)
        _exclude_model_from_children(state)
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
        self._run_end = run_end(state)
        self._run_end.add(self.store)

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
        _exclude_model_from_children(
            state
        )  # again, since a Trainer may train on another thread than the one that made it
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
        if self._run_end is not None:
            self._run_end.fit_ended()
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
        if self._is_parents:
            return
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
        if self._run_end is not None:
            self._run_end.remove(store)
            self._run_end = None
        store.close(self.output.close_timeout)
        closing_line.add_files(store.folder, store.count_files())
        self._windows = StageWindows(self.when)

    def _turn_off(self, reason: str) -> None:
        """Before the first batch: warn that nothing can be recorded in this run, and why."""
        warn(f'{type(self).__name__} records nothing: {reason}')
        self._life = DISABLED

    def _disable(self, error: BaseException) -> None:
        """Record nothing for the rest of the run; the training continues."""
        name = type(self).__name__
        log_error(f'{name} failed', error)
        if self._store is not None and is_lost_folder(error):
            self._store.report_lost_folder(error)  # one warning for all callbacks
        elif self._life is not DISABLED and not self._folder_lost:
            what = f'{type(error).__name__}: {explained(error)}'
            warn(f'{name} is disabled for the rest of this run: {what}. Training continues')
        self._drop_recording()


def _exclude_model_from_children(state: State) -> None:
    """Let no child that this thread forks have the model, its gradients and the optimizers' state."""
    exclude_from_children(state, lambda state: host_memory(state.model, state.optimizers))
