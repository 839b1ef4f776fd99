"""Causes in the memory of the host."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Optional

from composer_memprof.analysis.run_report.causes.kinds import (
    LEAST,
    CopiedByWorkers,
    HostFull,
    HostLeak,
    HostLeft,
    leak_cost,
)
from composer_memprof.analysis.run_report.readers import GrowingFile, MemrayFile, MemrayPlace
from composer_memprof.recorders.host.summary import (
    CHILDREN,
    TRAINING,
    CopiedObjects,
    HostSummary,
    main_phase,
    training_process,
)
from composer_memprof.vocabulary import AT_MOST

#: From this share of the limit on, a sample may be the last one before the kernel kills.
_FULL = 0.9
#: Memory that fills within this many samples more may have been full between two of them.
_AHEAD = 2
#: The shortest window of memray that shows a leak, in batches; how often a line leaves something, for each of them; the bytes that
#: it has left at least; and their share of all that is left, and of what HostRSS sees grow.
_FEWEST_BATCHES, _OFTEN, _LEAST_LEFT, _OF_LEFT = 8, 0.5, 4 << 20, 0.3
#: Copies explain that memory was full if they are this share of what the job took since the recording began.
_OF_GROWTH = 0.4
#: Workers copy a data set if one of them has copied this share of its Python objects, and so many bytes: a worker that starts, and
#: collects garbage, copies some too. So many bytes are copies of Python objects of which none is known.
_OF_OBJECTS, _LEAST_COPIED, _LEAST_UNKNOWN = 0.2, 24 << 20, 256 << 20


def host_full(
    files: Mapping[int, HostSummary],
    killed: Sequence[int],
    growing: Mapping[int, GrowingFile] = MappingProxyType({}),
) -> Iterator[HostFull]:
    """The rank that was killed with the memory of the host full, if one was.

    Args:
        files (Mapping): the recordings of host memory, by rank.
        killed (Sequence[int]): ranks that were killed.
        growing (Mapping): the containers that grow, by rank.
    """
    for rank in killed:
        file = files.get(rank)
        if file is not None and file.limit and file.usage_peak and _soon(file) >= _FULL * file.limit:
            name, phase, more = _taker(file)
            short = file.growth is None
            kept_by = growing[rank].kept_by if phase and rank in growing else ''
            copied = _copied(file)
            if copied is not None and copied.workers * copied.copied < _OF_GROWTH * _grown(file):
                copied = None
            peak, suspect = file.rss_peak, file.suspect
            yield HostFull(
                rank, 1.0, file.usage_peak, file.limit, suspect, peak, name, phase, more, short, kept_by, copied
            )
            return


def copied_by_workers(files: Mapping[int, HostSummary]) -> Iterator[CopiedByWorkers]:
    """The rank whose workers copy most of the Python objects of their data set.

    Args:
        files (Mapping): the recordings of host memory, by rank.
    """
    found = []
    for rank, file in files.items():
        copied = _copied(file)
        if copied is not None:
            memory = file.limit or max(file.over_time.rss, default=0) or file.rss_peak
            in_all = copied.workers * max(copied.copied, copied.objects)
            found.append(CopiedByWorkers(rank, min(in_all / max(memory, 1), 1.0), copied, file.limit))
    yield from sorted((each for each in found if each.cost >= LEAST), key=lambda cause: -cause.cost)[:1]


def _copied(file: HostSummary) -> Optional[CopiedObjects]:
    copied = file.copied
    if copied is None:
        return None
    least = max(_OF_OBJECTS * copied.objects, _LEAST_COPIED) if copied.kept_by else _LEAST_UNKNOWN
    return copied if copied.copied >= least and (not copied.kept_by or copied.objects >= _LEAST_COPIED) else None


def _grown(file: HostSummary) -> int:
    """Bytes of the cgroup at its peak, more than in the first sample."""
    first = next((size for size in file.over_time.cgroup_usage if size is not None), 0)
    return (file.usage_peak or 0) - first


def _soon(file: HostSummary) -> float:
    """The bytes of the cgroup by the next samples, if it goes on to grow as between the last two."""
    peak = float(file.usage_peak or 0)
    known = [
        (time, size) for time, size in zip(file.over_time.seconds, file.over_time.cgroup_usage) if size is not None
    ]
    if len(known) < 2 or file.samples < 2:
        return peak
    (before, smaller), (time, size) = known[-2:]
    interval = time / (file.samples - 1)
    return max(peak, size + _AHEAD * interval * (size - smaller) / max(time - before, interval, 1e-9))


def _taker(file: HostSummary) -> tuple[str, str, int]:
    """What took most more since the first sample, the phase in which it did, and the bytes."""
    process, children = file.over_time.rss, file.over_time.children_rss
    own, others = process[-1] - process[0], children[-1] - children[0]
    if others > own:
        return CHILDREN, '', others
    return training_process(file.charged), main_phase(file.charged), own


def host_leaks(
    files: Mapping[int, HostSummary], containers: Mapping[int, GrowingFile], captures: Mapping[int, MemrayFile]
) -> Iterator[HostLeak]:
    """The fastest leak of all ranks.

    Args:
        files (Mapping): the recordings of host memory, by rank.
        containers (Mapping): those that grow, by rank.
        captures (Mapping): memray's statistics, by rank.
    """
    found = {rank: file for rank, file in files.items() if file.suspect is not None}
    rank = max(found, key=lambda rank: found[rank].suspect.growth.per_batch, default=None)  # type: ignore[union-attr]
    if rank is None:
        return
    file = found[rank]
    assert file.suspect is not None
    cost = leak_cost(file.suspect.growth.per_batch, file.limit or file.rss_peak)
    is_own = file.suspect.name.startswith(TRAINING)
    kept_by = containers[rank].kept_by if is_own and rank in containers else ''
    left = _left(captures[rank]) if is_own and rank in captures else None
    if cost >= LEAST and not _fills_up(kept_by, file):
        yield HostLeak(rank, cost, file.suspect, len(found), file.limit, kept_by, _line(left) if left else '')


def _fills_up(kept_by: str, file: HostSummary) -> bool:
    """True if a container with a limit grows, which has room for all that it holds at most."""
    limit = re.search(rf'{AT_MOST}(\d+)', kept_by)
    assert file.suspect is not None
    return limit is not None and int(limit[1]) * file.suspect.growth.per_batch <= (file.limit or sys.maxsize)


def host_left(captures: Mapping[int, MemrayFile], files: Mapping[int, HostSummary]) -> Iterator[HostLeft]:
    """The line that has left most with each batch of a long window of memray, unless HostRSS saw that it does not grow.

    Args:
        captures (Mapping): memray's statistics, by rank.
        files (Mapping): the recordings of host memory, by rank.
    """
    found = []
    for rank, capture in captures.items():
        left = _left(capture)
        if left is None:
            continue
        cause = HostLeft(rank, 1.0, _line(left), left.bytes, capture.batches)
        trend = files[rank].growth if rank in files else None
        if trend is None or trend.high >= _OF_LEFT * cause.per_batch:
            found.append(cause)
    yield from sorted(found, key=lambda cause: -cause.per_batch)[:1]


def _left(capture: MemrayFile) -> Optional[MemrayPlace]:
    """The place of which the batches of a window have left most; None if no batch after batch has left much."""
    if capture.batches < _FEWEST_BATCHES:
        return None
    for place in capture.left:
        often = place.allocations >= _OFTEN * capture.batches
        if often and place.bytes >= max(_LEAST_LEFT, _OF_LEFT * capture.left_bytes) and not _is_library(place.file):
            return place
    return None


def _is_library(file: str) -> bool:
    return any(f'{os.sep}{name}{os.sep}' in file for name in ('torch', 'composer', 'composer_memprof', 'memray'))


def _line(place: MemrayPlace) -> str:
    return f'{PurePath(place.file).name}:{place.line} {place.function}'
