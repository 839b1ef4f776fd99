"""Causes in the memory of the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from composer_memprof.analysis.run_report.causes.kinds import LEAST, HostFull, HostLeak, leak_cost
from composer_memprof.recorders.host.summary import CHILDREN, HostSummary, main_phase, training_process

#: From this share of the limit on, a sample may be the last one before the kernel kills.
_FULL = 0.9
#: Memory that fills within this many samples more may have been full between two of them.
_AHEAD = 2


def host_full(files: Mapping[int, HostSummary], killed: Sequence[int]) -> Iterator[HostFull]:
    """The rank that was killed with the memory of the host full, if one was."""
    for rank in killed:
        file = files.get(rank)
        if file is not None and file.limit and file.usage_peak and _soon(file) >= _FULL * file.limit:
            name, phase, more = _taker(file)
            short = file.growth is None
            yield HostFull(
                rank, 1.0, file.usage_peak, file.limit, file.suspect, file.rss_peak, name, phase, more, short
            )
            return


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


def host_leaks(files: Mapping[int, HostSummary]) -> Iterator[HostLeak]:
    """The fastest leak of all ranks."""
    growing = {rank: file for rank, file in files.items() if file.suspect is not None}
    rank = max(growing, key=lambda rank: growing[rank].suspect.growth.per_batch, default=None)  # type: ignore[union-attr]
    if rank is None:
        return
    file = growing[rank]
    assert file.suspect is not None
    cost = leak_cost(file.suspect.growth.per_batch, file.limit or file.rss_peak)
    if cost >= LEAST:
        yield HostLeak(rank, cost, file.suspect, len(growing), file.limit)
