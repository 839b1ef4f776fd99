"""HostRSS' file: samples over time, and the summary at its end if the run ended well."""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np

from composer_memprof.analysis.typed_json import FormatError, from_plain
from composer_memprof.artifacts.compression import open_for_read
from composer_memprof.messages import printable

#: Of a larger file only the end is read.
_MOST_BYTES = 32 << 20
#: Longer recordings are thinned: the sample with the largest sum of each span of time stays.
_MOST_SAMPLES = 600


@dataclass(frozen=True)
class HostGrowth:
    """Growth in bytes a batch."""

    per_batch: float


@dataclass(frozen=True)
class Suspect:
    """The process that clearly grows."""

    name: str
    growth: HostGrowth


@dataclass(frozen=True)
class HostSample:
    """One line of the file. Sizes in bytes, ``time`` in seconds since 1970."""

    time: float
    batch: int
    phase: str
    rss: int
    children_rss: int = 0
    cgroup_usage: Optional[int] = None
    cgroup_limit: Optional[int] = None


@dataclass(frozen=True)
class HostFile:
    """A recording.

    Args:
        samples (list[HostSample]): in order of time, thinned to at most 600.
        rss_peak (int): of the process and its children together, in bytes.
        usage_peak (int, optional): of the cgroup.
        limit (int, optional): of the cgroup.
        suspect (Suspect, optional): the process that clearly grows.
        charged (dict[str, int]): bytes that the process grew by, by phase.
    """

    samples: list[HostSample]
    rss_peak: int = 0
    usage_peak: Optional[int] = None
    limit: Optional[int] = None
    suspect: Optional[Suspect] = None
    charged: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Last:
    """What the last line has beside a sample."""

    charged: dict[str, int] = field(default_factory=dict)
    suspect: Optional[Suspect] = None


def read_host_file(path: Path) -> HostFile:
    """Read a recording, also of a run that goes on or was killed. A line that was cut short is left out.

    Raises:
        FormatError: if it is not a recording.
        OSError: if it can't be read.
    """
    samples: list[HostSample] = []
    last = _Last()
    for line in _lines(path):
        try:
            record: Any = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError('not a record')
        except (ValueError, RecursionError):
            continue
        try:
            if record.get('event') == 'sample':
                samples.append(from_plain(HostSample, record))
            last = from_plain(_Last, record)
        except FormatError as error:
            raise FormatError(f'{printable(str(path))} is not a recording of HostRSS: {error}') from None
    if not samples:
        return HostFile([])
    totals = np.array([sample.rss + sample.children_rss for sample in samples])
    usages = [sample.cgroup_usage for sample in samples if sample.cgroup_usage is not None]
    return HostFile(
        samples=_thinned(samples, totals),
        rss_peak=int(totals.max()),
        usage_peak=max(usages, default=None),
        limit=samples[-1].cgroup_limit,
        suspect=last.suspect,
        charged=last.charged,
    )


def _lines(path: Path) -> io.BufferedIOBase | list[bytes]:
    with open_for_read(path) as file:
        if isinstance(file, io.BufferedReader) and os.fstat(file.fileno()).st_size > _MOST_BYTES:
            file.seek(-_MOST_BYTES, os.SEEK_END)
        return file.read(_MOST_BYTES).split(b'\n')


def _thinned(samples: list[HostSample], totals: np.ndarray) -> list[HostSample]:
    if len(samples) <= _MOST_SAMPLES:
        return samples
    groups = np.array_split(np.arange(len(samples)), _MOST_SAMPLES)
    return [samples[int(group[totals[group].argmax()])] for group in groups]
