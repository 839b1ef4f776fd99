"""The time of each phase of each batch, from marks on a clock that never waits.

>>> from composer_memprof.recorders.step_times.clocks import HostClock
>>> recorder = StepTimesRecorder(HostClock())
>>> for batch in range(2):
...     recorder.mark('dataloader')
...     recorder.begin_batch(batch, samples=8)
...     recorder.mark('forward')
...     recorder.mark('backward')
...     recorder.mark('optimizer')
...     recorder.end_batch()
>>> recorder.stop()
>>> [times.batch for times in recorder.take_finished()]
[0, 1]
"""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

from composer_memprof.recorders.step_times.clocks import Clock
from composer_memprof.recorders.step_times.summary import REST, BatchTimes
from composer_memprof.vocabulary import BACKWARD, CHECKPOINT, DATALOADER, EVAL, FORWARD, OPTIMIZER

_PHASES = frozenset({DATALOADER, FORWARD, BACKWARD, OPTIMIZER, EVAL, CHECKPOINT})


@dataclass
class _Batch:
    """A batch that runs, or whose marks' times are not all known yet."""

    batch: int
    epoch: int
    began: float
    samples: Optional[int]
    tokens: Optional[int]
    marks: list[tuple[str, Any]] = field(default_factory=list)
    end: Any = None


class StepTimesRecorder:
    """Times the phases of batches on one thread; usable without a Trainer.

    A batch lasts from the mark of ``dataloader`` before :meth:`begin_batch` to the next mark of ``dataloader`` after
    :meth:`end_batch`, or to :meth:`stop`.

    Args:
        clock (Clock): ``HostClock``, or ``CudaClock`` for training on a GPU.
        marks (Iterable): of the phases that began shortly before the recording.
    """

    def __init__(self, clock: Clock, marks: Iterable[tuple[str, Any]] = ()) -> None:
        self._clock = clock
        self._marks = list(marks)
        self._batch: Optional[_Batch] = None
        self._ended = False
        self._unknown: collections.deque[_Batch] = collections.deque()

    def mark(self, phase: str) -> None:
        """``phase`` starts now."""
        mark = self._clock.mark()
        if phase == DATALOADER and self._ended:
            self._finish_batch(mark)
        if phase == DATALOADER and self._batch is None:
            self._marks.clear()
        self._marks.append((phase, mark))

    def begin_batch(
        self, batch: int, epoch: int = 0, samples: Optional[int] = None, tokens: Optional[int] = None
    ) -> None:
        """A batch begins; its data is here."""
        mark = self._clock.mark()
        if self._ended:
            self._finish_batch(mark)
        self._marks.append((REST, mark))
        self._batch = _Batch(batch, epoch, time.time(), samples, tokens)
        self._ended = False

    def end_batch(self) -> None:
        """The batch has ended; what follows until the next request for data still belongs to it."""
        self.mark(REST)
        self._ended = self._batch is not None

    def stop(self) -> None:
        """End the recording; a batch that was not ended is dropped."""
        if self._ended:
            self._finish_batch(self._clock.mark())
        self._batch = None

    def take_finished(self) -> list[BatchTimes]:
        """The batches whose times have become known since the last call, in order."""
        finished = []
        while self._unknown and self._clock.is_known(self._unknown[0].end):
            finished.append(self._times(self._unknown.popleft()))
        return finished

    @property
    def is_settled(self) -> bool:
        """Whether all times were taken."""
        return not self._unknown

    def _finish_batch(self, end: Any) -> None:
        assert self._batch is not None
        self._batch.marks, self._batch.end = self._marks, end
        self._unknown.append(self._batch)
        self._marks, self._batch, self._ended = [], None, False

    def _times(self, batch: _Batch) -> BatchTimes:
        ends = [*(mark for _, mark in batch.marks[1:]), batch.end]
        spans: dict[str, list[float]] = collections.defaultdict(list)
        for (phase, begin), end in zip(batch.marks, ends):
            spans[phase if phase in _PHASES else REST].append(self._clock.seconds(begin, end))
        return BatchTimes(
            batch=batch.batch,
            epoch=batch.epoch,
            time=batch.began,
            clock=self._clock.name,
            total=self._clock.seconds(batch.marks[0][1], batch.end),
            dataloader=sum(spans[DATALOADER]) if DATALOADER in spans else None,
            forward=spans[FORWARD],
            backward=spans[BACKWARD],
            optimizer=sum(spans[OPTIMIZER]),
            eval=sum(spans[EVAL]),
            checkpoint=sum(spans[CHECKPOINT]),
            rest=sum(spans[REST]),
            samples=batch.samples,
            tokens=batch.tokens,
        )
