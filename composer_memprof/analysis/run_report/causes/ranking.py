"""All causes with evidence from several files, ranked by what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from composer_memprof.analysis.memory.snapshot_report import SnapshotReport
from composer_memprof.analysis.memory.summary import SnapshotSummary
from composer_memprof.analysis.run_report.attempts import RunAttempt
from composer_memprof.analysis.run_report.causes.device_memory import (
    device_leaks,
    leaks_between_windows,
    limited_growth,
)
from composer_memprof.analysis.run_report.causes.host_memory import (
    copied_by_workers,
    host_full,
    host_leaks,
    host_left,
)
from composer_memprof.analysis.run_report.causes.kinds import (
    Cause,
    Collecting,
    DeviceLeak,
    HostFull,
    HostLeak,
    Straggler,
    TimeTaken,
    Waiting,
)
from composer_memprof.analysis.run_report.causes.ran_out import reasons
from composer_memprof.analysis.run_report.causes.ran_out_kinds import RAN_OUT, FullPrecision, RanOut
from composer_memprof.analysis.run_report.causes.ranks import left_whole, straggler
from composer_memprof.analysis.run_report.causes.speed import slow_parts
from composer_memprof.analysis.run_report.readers import StepTimesFile
from composer_memprof.recorders.step_times.summary import DATA

#: A leak that holds this share of the memory that ran out is the reason.
_OF_WHAT_RAN_OUT = 0.25
#: A leak in the recording explains growth of the process of which it is this share.
_EXPLAINS = 0.5


def causes(
    summaries: Mapping[int, SnapshotSummary],
    contents: Mapping[str, Mapping[int, Any]],
    failed: Optional[tuple[int, SnapshotReport]],
    ranks: Sequence[int],
    last: Optional[RunAttempt],
) -> list[Cause]:
    """The causes that were found: first why memory ran out, if it did, then the costliest.

    Args:
        summaries (Mapping): the newest summary of a snapshot by rank.
        contents (Mapping): the newest content by callback and rank, as the readers return it.
        failed (tuple, optional): the rank that ran out of memory first, and the report on its snapshot.
        ranks (Sequence[int]): all ranks of the run.
        last (RunAttempt, optional): its last attempt; None if the manifests list none.
    """
    killed = last.ranks_in('killed') if last is not None else []
    hosts = {rank: attempt.host for rank, attempt in last.ranks.items()} if last is not None else {}
    host, growing, captures = (contents.get(key, {}) for key in ('host_rss', 'host_rss.growing', 'memray'))
    full = list(host_full(host, killed, growing))
    copied = [] if any(each.copied is not None for each in full) else list(copied_by_workers(host))
    host_found: list[Cause] = [*full] or [*host_leaks(host, growing, captures)] or [*host_left(captures, host)]
    leaks = list(device_leaks(summaries, host))
    between = [] if leaks else list(leaks_between_windows(contents.get('memory_snapshot.growing', {})))
    if any(
        each.on_host and not (isinstance(found, HostLeak) and found.kept_by) for each in between for found in host_found
    ):
        host_found = []
    elif host_found:
        between = [each for each in between if not each.on_host]
    others: list[Cause] = [
        *leaks,
        *between,
        *host_found,
        *copied,
        *_slow(contents.get('step_times', {}), hosts),
        *left_whole(summaries, contents.get('fsdp_mem_tracker', {}), ranks),
    ]
    filling = limited_growth(summaries)
    others = [
        cause
        for cause in others
        if not (isinstance(cause, HostLeak) and (_is_seen_on_host(cause, leaks) or _fills_up(cause, filling)))
    ]
    others.sort(key=lambda cause: (bool(copied) and isinstance(cause, Waiting), -cause.cost))  # copies take time, too
    if failed is None:
        return others
    filled = [leak for leak in leaks if leak.rank == failed[0] and leak.cost >= _OF_WHAT_RAN_OUT]
    found = [] if filled else _main(reasons(*failed, len(ranks)))
    return [*filled, *found, *(cause for cause in others if cause not in filled)]


def _is_seen_on_host(leak: HostLeak, found: Sequence[DeviceLeak]) -> bool:
    """True if a recording of a training on a CPU has shown most of a leak, with its line."""
    known = (each.per_batch for each in found if each.on_host and each.rank == leak.rank)
    return max(known, default=0) >= _EXPLAINS * leak.suspect.growth.per_batch


def _fills_up(leak: HostLeak, filling: Mapping[int, int]) -> bool:
    """True if containers with a limit, which fill up, have shown most of a leak in a recording of a training on a CPU."""
    return filling.get(leak.rank, 0) >= _EXPLAINS * leak.suspect.growth.per_batch


def _slow(files: Mapping[int, StepTimesFile], hosts: Mapping[int, str]) -> Iterator[Cause]:
    """A straggler explains what its phase takes on its rank."""
    behind = list(straggler(files, hosts))
    yield from behind
    for part in slow_parts(files):
        if not (behind and part.rank == behind[0].rank and _is_explained(part, behind[0])):
            yield part


def _is_explained(part: Cause, by: Straggler) -> bool:
    if isinstance(part, Waiting):
        return by.phase == DATA
    return (isinstance(part, TimeTaken) and part.phase == by.phase) or isinstance(part, Collecting)


def _main(found: Sequence[RanOut]) -> list[RanOut]:
    """The most particular reason; after one that is not particular, the next."""
    return list(found[: 2 if found and isinstance(found[0], FullPrecision) else 1])


def ended_the_run(cause: Cause, ranks_out_of_memory: Sequence[int]) -> bool:
    """True for a reason for which memory ran out, or the run was killed."""
    return isinstance(cause, (*RAN_OUT, HostFull)) or (
        isinstance(cause, DeviceLeak) and cause.cost >= _OF_WHAT_RAN_OUT and cause.rank in ranks_out_of_memory
    )
