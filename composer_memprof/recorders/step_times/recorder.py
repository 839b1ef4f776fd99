"""The time of each phase of each batch, from marks that never wait for a device.

>>> from composer_memprof.recorders.step_times.timers import HostTimer
>>> recorder = StepTimesRecorder(HostTimer())
>>> for batch in range(2):
...     recorder.mark('dataloader')
...     recorder.begin_batch(batch, samples=8)
...     recorder.mark('forward')
...     recorder.mark('backward')
...     recorder.mark('optimizer')
...     recorder.end_batch()
>>> recorder.close_batch(now=True)
>>> [times.batch for _, times in recorder.take_known()]
[0, 1]
"""

from __future__ import annotations

import collections
import time
from dataclasses import dataclass, field
from typing import Any, Optional

from composer_memprof.recorders.step_times.summary import REST, BatchTimes
from composer_memprof.recorders.step_times.timers import Timer
from composer_memprof.vocabulary import BACKWARD, BETWEEN_PHASES, CHECKPOINT, DATALOADER, EVAL, FORWARD, OPTIMIZER

_PHASES = frozenset({DATALOADER, FORWARD, BACKWARD, OPTIMIZER, EVAL, CHECKPOINT})
_Marks = list[tuple[str, Any]]


@dataclass
class _Batch:
    """A batch that runs, or whose times are not all known yet."""

    owner: Any
    batch: int
    epoch: int
    time: float
    samples: Optional[int]
    tokens: Optional[int]
    data: Optional[float]
    #: How many of the marks come before the batch's own work.
    marks_before: int
    ended: bool = False
    marks: _Marks = field(default_factory=list)
    end: Any = None


class StepTimesRecorder:
    """Times the phases of batches on one thread; usable without a Trainer.

    A batch lasts from the last request for data before :meth:`begin_batch` to the last request for data before the next
    one. Requests that bring no batch, at the end of an epoch, count as the rest of the batch before them.

    Args:
        timer (Timer): ``HostTimer``, or ``CudaTimer`` for training on a GPU.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._marks: _Marks = []
        self._requested = time.time()
        self._batch: Optional[_Batch] = None
        self._unknown: collections.deque[_Batch] = collections.deque()

    @property
    def clock(self) -> str:
        """``cuda`` or ``host``."""
        return self._timer.name

    @property
    def phase(self) -> str:
        """The phase that the training is in. Another thread may ask."""
        marks = self._marks
        phase = marks[-1][0] if marks else REST
        return REST if phase == BETWEEN_PHASES else phase

    def mark(self, phase: str) -> None:
        """``phase`` starts now. Outside of batches only requests for data are kept."""
        if self._batch is None:
            if phase == DATALOADER:
                self._marks.clear()
            elif phase != BETWEEN_PHASES or len(self._marks) != 1:
                return
        if phase == DATALOADER:
            self._requested = time.time()
        self._marks.append((phase, self._timer.mark()))

    def begin_batch(
        self,
        batch: int,
        epoch: int = 0,
        samples: Optional[int] = None,
        tokens: Optional[int] = None,
        data: Optional[float] = None,
        owner: Any = None,
    ) -> None:
        """A batch begins; its data is here. ``owner`` comes back with its times."""
        self.close_batch()
        if not self._marks:
            self._requested = time.time()
        self._marks.append((REST, self._timer.mark()))
        self._batch = _Batch(owner, batch, epoch, self._requested, samples, tokens, data, len(self._marks))

    def retry_batch(self) -> None:
        """The batch's work begins, perhaps once more: memory ran out, and Composer tries smaller microbatches."""
        if self._batch is not None:
            del self._marks[self._batch.marks_before :]

    def end_batch(self) -> None:
        """The batch's own work has ended; what follows still belongs to it."""
        if self._batch is not None:
            self._batch.ended = True
            self.mark(REST)

    def close_batch(self, now: bool = False) -> None:
        """Close a batch that has ended at the last request for data, or ``now``. One that has not ended is dropped."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        requests = [position for position, (phase, _) in enumerate(self._marks) if phase == DATALOADER]
        position = requests[-1] if requests and requests[-1] >= batch.marks_before and not now else len(self._marks)
        marks, self._marks = self._marks[:position], self._marks[position:]
        if batch.ended:
            batch.marks, batch.end = marks, self._marks[0][1] if self._marks else self._timer.mark()
            self._unknown.append(batch)

    def take_known(self) -> list[tuple[Any, BatchTimes]]:
        """The batches whose times have become known since the last call, in order, each with its owner."""
        known = []
        while self._unknown and self._timer.is_known(self._unknown[0].end):
            batch = self._unknown.popleft()
            known.append((batch.owner, self._times(batch)))
        return known

    def is_waiting_for(self, owner: Any) -> bool:
        """Whether a batch of ``owner`` is open, or has times that are not known yet."""
        batches = [*self._unknown, *([] if self._batch is None else [self._batch])]
        return any(batch.owner is owner for batch in batches)

    def _times(self, batch: _Batch) -> BatchTimes:
        ends = [*(mark for _, mark in batch.marks[1:]), batch.end]
        spans: dict[str, list[float]] = collections.defaultdict(list)
        for position, ((phase, begin), end) in enumerate(zip(batch.marks, ends)):
            is_own = phase in _PHASES and (phase != DATALOADER or position < batch.marks_before)
            spans[phase if is_own else REST].append(self._timer.seconds(begin, end))
        return BatchTimes(
            batch=batch.batch,
            epoch=batch.epoch,
            time=batch.time,
            clock=self._timer.name,
            total=self._timer.seconds(batch.marks[0][1], batch.end),
            data=batch.data,
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
