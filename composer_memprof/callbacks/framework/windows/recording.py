"""The windows of a callback: each is begun, recorded, finished, postponed or skipped, as the schedule and others allow."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict
from typing import Any, Optional

from composer.core import State
from composer.utils import dist

from composer_memprof import signals
from composer_memprof.artifacts.store import ArtifactStore, Part, fork_next_writer
from composer_memprof.callbacks.framework.hooks import RecordingHooks
from composer_memprof.callbacks.framework.life import DISABLED, IDLE, RECORDING, SKIPPING, WARMING_UP
from composer_memprof.callbacks.framework.options import Output, When
from composer_memprof.callbacks.framework.windows import composer_profiler, exclusive
from composer_memprof.callbacks.framework.windows.exclusive import Obstacle
from composer_memprof.callbacks.framework.windows.host_room import host_room
from composer_memprof.callbacks.framework.windows.short_runs import warn_of_unfinished
from composer_memprof.callbacks.framework.windows.stage_windows import StageWindows
from composer_memprof.messages import errors_logged, warn
from composer_memprof.report.text.tables.head import StageHead, WindowHead
from composer_memprof.signals import uninterrupted


class _NoRoom(Obstacle):
    """Earlier windows, or the training's memory, leave no room for another one."""


class WindowRecording(RecordingHooks):
    """Opens and closes the windows of one run."""

    when: When
    output: Output

    def _forget_windows(self) -> None:
        self._store: Optional[ArtifactStore] = None
        self._life = IDLE
        self._stage = 'train'  # of the open window
        self._windows = StageWindows(self.when)
        self._folder_lost = False  # set on a background thread; the open window goes on, no other follows
        self._ends_too_early = False  # already warned that the run ends before the first window
        self._warned: set[str] = set()  # what is warned of once a run
        self._obstacle: Optional[Obstacle] = None  # why the last window that was due is not recorded

    @property
    def store(self) -> ArtifactStore:
        assert self._store is not None, 'the store exists from INIT to the close'
        return self._store

    @property
    def is_recording(self) -> bool:
        """Whether a window is open and recorded."""
        return self._life is RECORDING

    def _head(self, state: State) -> WindowHead:
        """The first fields of a window's report."""
        return WindowHead(dist.get_global_rank(), state.timestamp.epoch.value, state.timestamp.batch.value)

    def _stage_head(self, state: State) -> StageHead:
        """The first fields of a report of one stage."""
        return StageHead(**asdict(self._head(state)), stage=self._stage)

    def _metric_group(self, name: str, stage: str) -> str:
        """The first part of metrics' names; evaluation and prediction have their own if several stages are recorded."""
        return name if stage == 'train' or len(self.when.stages) == 1 else f'{name}/{stage}'

    @abstractmethod
    def records_for(self, state: State) -> bool:
        """Whether it records the training of ``state``."""

    @abstractmethod
    def end_abandoned_recording(self) -> None:
        """Save and end a recording whose training failed and whose Trainer was never closed."""

    def _before_batch(self, stage: str, state: State) -> None:
        fork_next_writer()
        if stage not in self._windows:
            return
        if self._folder_lost and not self.is_recording:
            self._cancel_warmup()
            self._life = DISABLED
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
        if self._life is SKIPPING and not phase.joined:
            self._life = IDLE
        if phase.active:
            if self._life is not SKIPPING:
                self._begin(stage, state)
        elif not phase.warmup:
            self._cancel_warmup()
        elif self._life is IDLE:
            self._warm_up(state)

    def _after_batch(self, stage: str, state: State) -> None:
        if not self.is_recording:
            if self._life is WARMING_UP and self._must_yield(state):
                self._cancel_warmup()
            return
        if self._stage == stage:  # otherwise an evaluation inside an open training window
            self._batch_ended(state)
        self._finish_if_over(stage, state)
        if not self.is_recording:
            return
        short = host_room.why_end(self) if self.grows_in_memory else None
        if short is not None or self._must_yield(state):
            self._finish(state)
            self._life = SKIPPING
        if short is not None and 'room' not in self._warned:
            self._warned.add('room')
            batch = state.timestamp.batch.value
            warn(f'{type(self).__name__} ended its window early, at batch {batch}, because {short}')

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

    def _warm_up(self, state: State) -> None:
        if self._claim(state):
            self._life = WARMING_UP
            self._prepare(state)

    def _begin(self, stage: str, state: State) -> None:
        if not self._claim(state):
            self._cancel_warmup()
            self._miss_window(stage, state)
            return
        with uninterrupted():
            self._life = RECORDING
            self._stage = stage
            if self.grows_in_memory:
                host_room.opened(self)
            self._start(state, self._windows.stamp(stage, state))
            self._batch_begins(state)

    def _miss_window(self, stage: str, state: State) -> None:
        """Skip a window that can't be recorded now. The last one is postponed: tried again before each batch."""
        again = self.when.schedule.without_skip()
        if again is None:
            self._life = SKIPPING
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
            self._life = IDLE
            try:
                self._stop(state, self._windows.stamp(self._stage, state))
            except Exception:
                with errors_logged('cleaning up failed too'):
                    self._cancel()
                raise
            finally:
                exclusive.release(self, self.session)
                host_room.closed(self)

    def _cancel_warmup(self) -> None:
        if self._life is WARMING_UP:
            self._life = IDLE
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
        if reason is None and self.grows_in_memory:
            reason = host_room.why_not(self)
        if reason is not None:
            return _NoRoom(reason, 'Leave more time between windows')
        if not self.resources:
            return None
        if self._must_yield(state):
            return exclusive.held_by("Composer's TorchProfiler")
        return exclusive.claim(self, state)

    def _must_yield(self, state: State) -> bool:
        return exclusive.KINETO in self.resources and composer_profiler.wants_batch(state)

    def _drop_recording(self) -> None:
        """End what runs without a result, and record nothing for the rest of the run."""
        busy = self._life in (RECORDING, WARMING_UP)
        self._life = DISABLED
        if busy:
            with errors_logged('cleaning up failed too'):
                self._cancel()
        with errors_logged('cleaning up failed too'):
            self.yield_resources()
        exclusive.release(self, self.session)
        host_room.closed(self)

    def _warn_of_unfinished(self, state: State) -> None:
        silent = self._life is DISABLED or self._folder_lost or self._ends_too_early
        if not silent and self.when.schedule.ends_by_itself:
            batch = state.timestamp.batch.value
            warn_of_unfinished(type(self).__name__, batch, inside=self.is_recording, obstacle=self._obstacle)
