"""How far a run is that goes on: its newest batch and its speed, from the ends of the files that grow."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from composer_memprof.analysis.run import Artifact
from composer_memprof.artifacts.reading.regular_files import open_regular

#: The last bytes of a file, batches and ranks that are read.
_BYTES, _BATCHES, _RANKS = 64 << 10, 50, 64
_STEP_TIMES, _HOST = 'step_times', 'host_rss'


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    Args:
        first (int): the newest batch of the rank that is furthest behind.
        last (int): the newest batch of the rank that is furthest ahead.
        seconds_per_batch (float, optional): the median of the last batches; None if it is not known.
        samples_per_second (float, optional): of one rank, in these batches.
    """

    first: int
    last: int
    seconds_per_batch: Optional[float]
    samples_per_second: Optional[float]


def progress_of(artifacts: Sequence[Artifact]) -> Optional[Progress]:
    """The progress of a run; None if no file says it.

    Args:
        artifacts (Sequence[Artifact]): of the run, each rank's as they were written.
    """
    batches: dict[int, int] = {}
    seconds: list[float] = []
    rates: list[float] = []
    for kind in (_STEP_TIMES, _HOST):
        newest = {artifact.entry.rank: artifact for artifact in artifacts if artifact.entry.kind == kind}
        for rank in [rank for rank in sorted(newest)[:_RANKS] if rank not in batches]:
            records = list(_last_records(newest[rank]))
            if not records:
                continue
            batches[rank] = max(record['batch'] for record in records)
            took = [record['total'] for record in records if _is_number(record.get('total'))] or _from_times(records)
            if took:
                seconds.append(statistics.median(took))
            samples = [record['samples'] for record in records if _is_number(record.get('samples'))]
            if samples and sum(took):
                rates.append(sum(samples) / sum(took))
    if not batches:
        return None
    return Progress(
        first=min(batches.values()),
        last=max(batches.values()),
        seconds_per_batch=statistics.median(seconds) if seconds else None,
        samples_per_second=statistics.median(rates) if rates else None,
    )


def _from_times(records: Sequence[dict[str, Any]]) -> list[float]:
    """The mean time of a batch, from samples of the whole process."""
    timed = [record for record in records if _is_number(record.get('time'))]
    if len(timed) < 2 or timed[-1]['batch'] <= timed[0]['batch']:
        return []
    return [(timed[-1]['time'] - timed[0]['time']) / (timed[-1]['batch'] - timed[0]['batch'])]


def _last_records(artifact: Artifact) -> Iterator[dict[str, Any]]:
    """The last lines that have a batch. The file is not trusted, and its last line may be half of one."""
    try:
        path = artifact.checked_path()
        lines = _end_of(path) if path.is_file() else []
    except (OSError, ValueError):
        return
    for line in lines[-_BATCHES:]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get('batch'), int):
            yield record


def _end_of(path: Path) -> list[bytes]:
    with open_regular(path) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _BYTES, 0))
        return file.read(_BYTES).split(b'\n')


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15
