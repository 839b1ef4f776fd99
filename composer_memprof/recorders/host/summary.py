"""A recording of host memory in short: its peaks, its growth, and at most a hundred samples. Memory is bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from composer_memprof.recorders.host.trend import Trend
from composer_memprof.vocabulary import START

#: Raised when a key changes its meaning.
VERSION = 1
#: Most samples of a summary.
MOST_SAMPLES = 100
#: The processes below the training process, for people.
CHILDREN = 'its child processes'
#: The training's own process, for people.
TRAINING = 'the training process'


@dataclass(frozen=True)
class HostSample:
    """The sizes at one time, in bytes.

    Args:
        time (float): in seconds since 1970.
        batch (int): the batch.
        phase (str): the phase of the batch.
        rss (int): of the process.
        children_rss (int): of its children.
        cgroup_usage (int, optional): of the cgroup; None without one.
        cgroup_limit (int, optional): of the cgroup; None without one.
    """

    time: float
    batch: int
    phase: str
    rss: int
    children_rss: int = 0
    cgroup_usage: Optional[int] = None
    cgroup_limit: Optional[int] = None

    @property
    def total(self) -> int:
        """Of the process and its children."""
        return self.rss + self.children_rss


@dataclass(frozen=True)
class HostSeries:
    """Samples as columns of equal length, in order of time. ``seconds`` are since the first sample, sizes are bytes."""

    seconds: list[float] = field(default_factory=list)
    batch: list[int] = field(default_factory=list)
    phase: list[str] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    children_rss: list[int] = field(default_factory=list)
    cgroup_usage: list[Optional[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Suspect:
    """The process that clearly grows. ``name`` is for people."""

    name: str
    growth: Trend


@dataclass(frozen=True)
class CopiedObjects:
    """What DataLoader workers have copied of the memory that they share with the training process.

    Args:
        workers (int): how many there are.
        copied (int): bytes that the worker has copied that has copied most.
        kept_by (str): the largest container of Python objects in the data set, in words; ``''`` if none was found.
        objects (int): bytes of all Python objects of the data set, about: a worker that reads all of them copies as much.
    """

    workers: int
    copied: int
    kept_by: str = ''
    objects: int = 0


def main_phase(charged: Mapping[str, int]) -> str:
    """The phase that grew most, of bytes by phase; ``''`` if none did."""
    return max((phase for phase in charged if phase != START), key=lambda phase: charged[phase], default='')


def training_process(charged: Mapping[str, int]) -> str:
    """The process without its children, for people, with the phase of ``charged`` (bytes by phase) that grew most."""
    phase = main_phase(charged)
    return f'{TRAINING}, most of its new pages in phase {phase!r}' if phase else TRAINING


@dataclass(frozen=True)
class HostSummary:
    """A recording in short.

    Args:
        samples (int): how many were taken.
        over_time (HostSeries): of each span of samples the one with the largest sum.
        rss_peak (int): of the process and its children together, in bytes.
        usage_peak (int, optional): of the cgroup, in bytes.
        limit (int, optional): of the cgroup, in bytes.
        growth (Trend, optional): of the process without its children; None if there were too few batches.
        suspect (Suspect, optional): the process that clearly grows.
        charged (dict[str, int]): bytes that the process grew by, by phase.
        copied (CopiedObjects, optional): what DataLoader workers have copied; None if there were none.
        version (int): of this format.
    """

    samples: int
    over_time: HostSeries
    rss_peak: int
    usage_peak: Optional[int] = None
    limit: Optional[int] = None
    growth: Optional[Trend] = None
    suspect: Optional[Suspect] = None
    charged: dict[str, int] = field(default_factory=dict)
    copied: Optional[CopiedObjects] = None
    version: int = VERSION

    def as_dict(self) -> dict[str, Any]:
        """As written to JSON."""
        return asdict(self)


class HostTally:
    """Takes samples in, and keeps the largest of each span of time.

    Args:
        most (int): spans, an even number. When there are as many, each two become one.
    """

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self._most = most
        self._largest: list[HostSample] = []
        self._stride = 1  # samples of a span
        self._samples = 0
        self._begin = 0.0
        self._rss_peak = 0
        self._usage_peak: Optional[int] = None
        self._limit: Optional[int] = None

    def add(self, sample: HostSample) -> None:
        """Take in the next sample."""
        if not self._samples:
            self._begin = sample.time
        self._rss_peak = max(self._rss_peak, sample.total)
        if sample.cgroup_usage is not None:
            self._usage_peak = max(self._usage_peak or 0, sample.cgroup_usage)
        self._limit = sample.cgroup_limit
        if self._samples % self._stride:
            self._largest[-1] = _larger(self._largest[-1], sample)
        else:
            if len(self._largest) == self._most:
                self._join_pairs()
            self._largest.append(sample)
        self._samples += 1

    def _join_pairs(self) -> None:
        self._largest = [_larger(one, next_one) for one, next_one in zip(self._largest[::2], self._largest[1::2])]
        self._stride *= 2

    def summary(
        self,
        growth: Optional[Trend] = None,
        suspect: Optional[Suspect] = None,
        charged: Optional[dict[str, int]] = None,
        copied: Optional[CopiedObjects] = None,
    ) -> HostSummary:
        """All samples so far in short, with what the caller knows of growth."""
        return HostSummary(
            samples=self._samples,
            over_time=_as_columns(self._largest, self._begin),
            rss_peak=self._rss_peak,
            usage_peak=self._usage_peak,
            limit=self._limit,
            growth=growth,
            suspect=suspect,
            charged=charged or {},
            copied=copied,
        )


def _larger(one: HostSample, other: HostSample) -> HostSample:
    return other if other.total > one.total else one


def _as_columns(samples: Sequence[HostSample], begin: float) -> HostSeries:
    return HostSeries(
        seconds=[round(sample.time - begin, 3) for sample in samples],
        batch=[sample.batch for sample in samples],
        phase=[sample.phase for sample in samples],
        rss=[sample.rss for sample in samples],
        children_rss=[sample.children_rss for sample in samples],
        cgroup_usage=[sample.cgroup_usage for sample in samples],
    )
