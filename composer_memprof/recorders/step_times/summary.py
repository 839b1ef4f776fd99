"""The times of many batches in short: sums, percentiles, shares, the slowest batches. Memory is bounded."""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

import numpy as np

from composer_memprof.vocabulary import BACKWARD, CHECKPOINT, DATALOADER, EVAL, FORWARD, OPTIMIZER

TOTAL, REST, DATA = 'total', 'rest', 'data'
#: The phases that make up a batch's total; what belongs to no other is the rest.
PARTS = (DATALOADER, FORWARD, BACKWARD, OPTIMIZER, EVAL, CHECKPOINT, REST)
#: What is summed up of a batch. ``data`` is a part of ``dataloader``, on the host.
COLUMNS = (TOTAL, DATA, *PARTS)
#: Percentiles are of this many of the newest batches at most: 4 MiB.
_KEPT = 65_536
#: Logged percentiles are of this many of the newest batches: some ten microseconds to compute.
_RECENT = 512
_PERCENTILES = (50, 90, 99)
_SLOWEST = 10
#: An evaluation or a checkpoint that takes less of a batch did not come: its events do each time.
_PART_OF_BATCH = 0.1
#: The fewest batches whose quarters are told apart, and the name of a batch's tokens or samples.
_QUARTERED, SIZE = 40, 'size'


@dataclass(frozen=True)
class BatchTimes:
    """The times of one batch, in seconds.

    Args:
        batch (int): batches of its stage done before it.
        epoch (int): epochs of training done before it.
        time (float): when its data was requested, in seconds since 1970.
        clock (str): ``cuda`` or ``host``.
        total (float): from the request for its data to the request for the next batch's, or the end of the run.
        data (float, optional): that this rank's own DataLoader took, on the host; None without a torch DataLoader.
        dataloader (float, optional): until every rank had its data; None if that began before the recording.
        forward (list[float]): of each microbatch, with the loss.
        backward (list[float]): of each microbatch.
        optimizer (float): from the end of backward to the end of the batch: the update, and the schedulers.
        eval (float): evaluations after the batch.
        checkpoint (float): checkpoints after the batch.
        rest (float): what belongs to no other phase, and attempts that ran out of memory.
        samples (int, optional): in this rank's batch.
        tokens (int, optional): in this rank's batch, padding included; None if it has no sequences.
    """

    batch: int
    epoch: int
    time: float
    clock: str
    total: float
    data: Optional[float]
    dataloader: Optional[float]
    forward: list[float]
    backward: list[float]
    optimizer: float
    eval: float
    checkpoint: float
    rest: float
    samples: Optional[int]
    tokens: Optional[int]

    def columns(self) -> dict[str, float]:
        """Seconds by ``COLUMNS``; microbatches are added up."""
        values = {name: getattr(self, name) or 0.0 for name in COLUMNS}
        return {**values, FORWARD: sum(self.forward), BACKWARD: sum(self.backward)}


@dataclass(frozen=True)
class SlowBatch:
    """One of the slowest batches, with the phase that exceeded its median by most."""

    batch: int
    seconds: float
    phase: str
    phase_seconds: float
    phase_median: float


@dataclass(frozen=True)
class StepTimesSummary:
    """A recording in short.

    Args:
        clock (str): ``cuda`` or ``host``.
        batches (int): how many were recorded.
        seconds (dict): for ``total``, ``data`` and each phase, of one batch: ``mean`` over all, and ``p50``, ``p90``, ``p99``,
            ``max`` over the newest 65,536.
        share (dict): each phase's share of the time of all batches; that of ``dataloader`` is the share of waiting for data.
        samples_per_second (float, optional): of this rank.
        tokens_per_second (float, optional): of this rank.
        slowest (list[SlowBatch]): at most 10, the slowest first.
        batches_with (dict): how many batches an evaluation came after, and how many a checkpoint.
        quarters (list[dict]): of each quarter of the newest 65,536 batches, the medians of ``total``, ``data``, each phase, and
            ``size``, the tokens or samples of a batch; empty for fewer than 40 batches.
        microbatches (float): forward passes of a batch, on average.
        epoch_starts (dict): how long the first batches of epochs waited for data: ``first``, of the run's first epoch; ``count``
            and ``seconds`` of the later ones; ``others``, of the first batches of all other workers together.
        version (int): of this format.
    """

    clock: str
    batches: int
    seconds: dict[str, dict[str, float]]
    share: dict[str, float]
    samples_per_second: Optional[float]
    tokens_per_second: Optional[float]
    slowest: list[SlowBatch]
    batches_with: dict[str, int]
    quarters: list[dict[str, float]]
    microbatches: float = 0.0
    epoch_starts: dict[str, float] = field(default_factory=dict)
    version: int = 1

    def as_dict(self) -> dict[str, Any]:
        """As written to JSON."""
        return asdict(self)


class StepTimesTally:
    """Adds batches up.

    Args:
        workers (int): of the DataLoader: so many batches of an epoch are each the first one of a worker.
    """

    def __init__(self, workers: int = 0) -> None:
        self.batches = 0
        self._sums = dict.fromkeys(COLUMNS, 0.0)
        self._newest: np.ndarray = np.zeros((_RECENT, len(COLUMNS) + 1))  # a ring that grows up to ``_KEPT`` rows
        self._slowest: list[tuple[float, int, tuple[float, ...]]] = []
        self._batches_with = {EVAL: 0, CHECKPOINT: 0}
        self._samples: Optional[int] = 0
        self._tokens: Optional[int] = 0
        self._microbatches = 0
        self._workers = workers
        self._epoch: Optional[int] = None
        #: The batches of the epoch so far; None if its begin was not recorded.
        self._in_epoch: Optional[int] = None
        self._epoch_starts = {'first': 0.0, 'count': 0, 'seconds': 0.0, 'others': 0.0}

    def add(self, times: BatchTimes) -> None:
        """Take in the next batch."""
        values = times.columns()
        if self.batches == len(self._newest) < _KEPT:
            self._newest = np.concatenate([self._newest, np.zeros_like(self._newest)])
        row = tuple(values.values())
        self._newest[self.batches % len(self._newest)] = (*row, times.tokens or times.samples or 0)
        self.batches += 1
        for name, value in values.items():
            self._sums[name] += value
        for name in self._batches_with:
            self._batches_with[name] += values[name] > _PART_OF_BATCH * times.total
        heapq.heappush(self._slowest, (times.total, times.batch, row))
        if len(self._slowest) > _SLOWEST:
            heapq.heappop(self._slowest)
        self._microbatches += len(times.forward)
        self._note_start(times)
        self._samples = _plus(self._samples, times.samples)
        self._tokens = _plus(self._tokens, times.tokens)

    def _note_start(self, times: BatchTimes) -> None:
        """Note how long the first batches of an epoch wait for this rank's own data."""
        before, self._epoch = self._epoch, times.epoch
        whole = times.dataloader or 0.0
        wait = whole if times.data is None else min(times.data, whole)
        if times.batch == 0:
            self._epoch_starts['first'], self._in_epoch = wait, 1
        elif before is not None and before != times.epoch:
            self._epoch_starts['count'] += 1
            self._epoch_starts['seconds'] += wait
            self._in_epoch = 1
        elif self._in_epoch is not None and self._in_epoch < self._workers:
            self._epoch_starts['others'] += wait
            self._in_epoch += 1

    def recent_percentiles(self) -> dict[str, float]:
        """``total_p50`` and so on, for ``total``, ``data`` and each phase, over the newest 512 batches."""
        rows = min(self.batches, _RECENT)
        newest = self._newest[(self.batches - 1 - np.arange(rows)) % len(self._newest), : len(COLUMNS)]
        found = _percentiles(newest)
        return {
            f'{name}_p{percent}': float(found[row, column])
            for column, name in enumerate(COLUMNS)
            for row, percent in enumerate(_PERCENTILES)
        }

    @property
    def waiting_share(self) -> float:
        """The share of the time of all batches spent waiting for data."""
        return self._share(DATALOADER)

    def summary(self, clock: str) -> StepTimesSummary:
        """All of it in short."""
        kept = self._newest[: max(min(self.batches, len(self._newest)), 1)]
        found = np.percentile(kept, (*_PERCENTILES, 100), axis=0)
        names = (*(f'p{percent}' for percent in _PERCENTILES), 'max')
        seconds = {
            name: {
                'mean': self._sums[name] / max(self.batches, 1),
                **{key: float(found[row, column]) for row, key in enumerate(names)},
            }
            for column, name in enumerate(COLUMNS)
        }
        medians = found[0]
        return StepTimesSummary(
            clock=clock,
            batches=self.batches,
            seconds=seconds,
            share={name: self._share(name) for name in PARTS},
            samples_per_second=self._rate(self._samples),
            tokens_per_second=self._rate(self._tokens),
            slowest=[_slow_batch(*slow, medians) for slow in sorted(self._slowest, reverse=True)],
            batches_with=dict(self._batches_with),
            quarters=self._quarters(),
            microbatches=self._microbatches / max(self.batches, 1),
            epoch_starts=dict(self._epoch_starts),
        )

    def _quarters(self) -> list[dict[str, float]]:
        rows = min(self.batches, len(self._newest))
        if rows < _QUARTERED:
            return []
        in_order = self._newest[(self.batches - rows + np.arange(rows)) % len(self._newest)]
        medians = (np.median(quarter, axis=0).tolist() for quarter in np.array_split(in_order, 4))
        return [dict(zip((*COLUMNS, SIZE), each)) for each in medians]

    def _share(self, name: str) -> float:
        return self._sums[name] / self._sums[TOTAL] if self._sums[TOTAL] else 0.0

    def _rate(self, count: Optional[int]) -> Optional[float]:
        return count / self._sums[TOTAL] if count and self._sums[TOTAL] else None


def _percentiles(rows: np.ndarray) -> np.ndarray:
    """``np.percentile`` of each column at ``_PERCENTILES``, in a third of its time: training waits for it."""
    ordered = np.sort(np.ascontiguousarray(rows.T), axis=1)
    position = np.array(_PERCENTILES) / 100 * (len(rows) - 1)
    below = position.astype(int)
    above = np.minimum(below + 1, len(rows) - 1)
    return (ordered[:, below] + (ordered[:, above] - ordered[:, below]) * (position - below)).T


def _slow_batch(total: float, batch: int, row: tuple[float, ...], medians: np.ndarray) -> SlowBatch:
    phase = max(map(COLUMNS.index, PARTS), key=lambda column: row[column] - medians[column])
    return SlowBatch(batch, total, COLUMNS[phase], row[phase], float(medians[phase]))


def _plus(count: Optional[int], more: Optional[int]) -> Optional[int]:
    """A batch whose size is not known makes the sum unknown."""
    return None if count is None or more is None else count + more
