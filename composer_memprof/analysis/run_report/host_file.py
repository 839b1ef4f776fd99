"""HostRSS' files: the summary of a recording, and all samples of one that has none, since it was killed or goes on."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from composer_memprof.analysis.typed_json import FormatError, from_plain, read_json
from composer_memprof.artifacts.naming.compression import open_for_read
from composer_memprof.messages import printable
from composer_memprof.recorders.host.summary import (
    CHILDREN,
    CopiedObjects,
    HostSample,
    HostSummary,
    HostTally,
    Suspect,
    training_process,
)
from composer_memprof.recorders.host.trend import Series, Trend

#: Of a larger file only the end is read.
_MOST_BYTES = 32 << 20
#: The largest summary that is read.
_MOST_BYTES_OF_SUMMARY = 1 << 20


@dataclass(frozen=True)
class _Last:
    """What the last line has beside a sample."""

    charged: dict[str, int] = field(default_factory=dict)
    growth: Optional[Trend] = None
    suspect: Optional[Suspect] = None
    copied: Optional[CopiedObjects] = None


def read_host_summary(path: Path) -> HostSummary:
    """Read the summary of a recording.

    Raises:
        FormatError: if it is not one.
        OSError: if it can't be read.
    """
    summary = read_json(HostSummary, path, 'a summary of HostRSS', _MOST_BYTES_OF_SUMMARY)
    if len({len(column) for column in astuple(summary.over_time)}) > 1:
        raise FormatError(f'{printable(str(path))} is not a summary of HostRSS: its columns differ in length')
    return summary


def read_host_file(path: Path) -> HostSummary:
    """Read a recording, also of a run that goes on or was killed. A line that was cut short is left out.

    Raises:
        FormatError: if it is not a recording.
        OSError: if it can't be read.
    """
    tally, last = HostTally(), _Last()
    process, children = Series(), Series()
    for line in _lines(path):
        try:
            record: Any = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError('not a record')
        except (ValueError, RecursionError):
            continue
        try:
            if record.get('event') == 'sample':
                sample = from_plain(HostSample, record)
                tally.add(sample)
                process.add(sample.batch, sample.rss)
                children.add(sample.batch, sample.children_rss)
            last = from_plain(_Last, record)
        except FormatError as error:
            raise FormatError(f'{printable(str(path))} is not a recording of HostRSS: {error}') from None
    if last.suspect is None:  # the recording has no end
        last = replace(last, growth=process.trend(), suspect=_suspect(process, children, last.charged))
    return tally.summary(last.growth, last.suspect, last.charged, last.copied)


def _suspect(process: Series, children: Series, charged: Mapping[str, int]) -> Optional[Suspect]:
    """What clearly grows by the samples alone, as of a run that was killed."""
    name = training_process(charged)
    growing = [
        Suspect(name, trend)
        for name, trend in ((name, process.trend()), (CHILDREN, children.trend()))
        if trend is not None and trend.clear
    ]
    return max(growing, key=lambda suspect: suspect.growth.per_batch, default=None)


def _lines(path: Path) -> io.BufferedIOBase | list[bytes]:
    with open_for_read(path) as file:
        if isinstance(file, io.BufferedReader) and os.fstat(file.fileno()).st_size > _MOST_BYTES:
            file.seek(-_MOST_BYTES, os.SEEK_END)
        return file.read(_MOST_BYTES).split(b'\n')
