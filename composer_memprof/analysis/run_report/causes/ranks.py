"""Causes between ranks: a rank that the others wait for, and modules that FSDP left whole."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from composer_memprof.analysis.memory.summary import SnapshotSummary
from composer_memprof.analysis.module_memory import ModuleMemorySummary
from composer_memprof.analysis.run_report.causes.kinds import LEAST, LeftWhole, Straggler
from composer_memprof.analysis.run_report.causes.speed import main_line, typical
from composer_memprof.analysis.run_report.readers import StepTimesFile
from composer_memprof.recorders.step_times.summary import DATA, REST, TOTAL
from composer_memprof.vocabulary import CHECKPOINT, DATALOADER, EVAL, FORWARD, OPTIMIZER

#: A rank's own work. In backward and in ``dataloader`` ranks wait for one another, which shows who waits, not for whom.
_OWN = (DATA, FORWARD, OPTIMIZER, EVAL, CHECKPOINT, REST)
#: A rank is slow if a phase takes this many times as long, and this share of a batch and these seconds more.
_TIMES, _SHARE, _SECONDS = 1.2, 0.15, 0.002
#: Parameters, gradients, and the two states of Adam.
_COPIES = 4


def straggler(files: Mapping[int, StepTimesFile], hosts: Mapping[int, str]) -> Iterator[Straggler]:
    """The rank that the others wait for longest, if there is one.

    Args:
        files (Mapping): the step times by rank.
        hosts (Mapping): the machine by rank, where it is known.
    """
    found = []
    for phase in _OWN:
        times = {rank: typical(file, phase) for rank, file in files.items()}
        for rank, seconds in times.items():
            others = [other for of, other in times.items() if of != rank]
            batch = typical(files[rank], TOTAL)
            if not others or not batch:
                continue
            usual = statistics.median(others)
            if seconds >= _TIMES * usual and seconds - usual >= max(_SHARE * batch, _SECONDS):
                found.append(_straggler(rank, phase, usual, batch, files, times, hosts))
    yield from sorted(found, key=lambda cause: -(cause.seconds - cause.others))[:1]


def _straggler(
    rank: int,
    phase: str,
    usual: float,
    batch: float,
    files: Mapping[int, StepTimesFile],
    times: Mapping[int, float],
    hosts: Mapping[int, str],
) -> Straggler:
    file, seconds = files[rank], times[rank]
    together = sorted(of for of, other in times.items() if other > (seconds + usual) / 2)
    sizes = {of: _size(other) for of, other in files.items()}
    others = [size for of, size in sizes.items() if of != rank and size]
    return Straggler(
        rank=rank,
        cost=min((seconds - usual) / batch, 1.0),
        phase=phase,
        seconds=seconds,
        others=usual,
        line=main_line(file, DATALOADER if phase == DATA else phase),
        size=sizes[rank] / statistics.median(others) if others and sizes[rank] else 1.0,
        collecting=file.pauses.collecting / max(file.batches, 1),
        loader=file.loader if phase == DATA else None,
        together=together,
        host=_host_of(together, hosts),
    )


def _host_of(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """The machine that has these ranks and no others; ``''`` if there is none, or all ranks are on it."""
    names = {hosts.get(rank, '') for rank in ranks}
    name = names.pop()
    return name if not names and sorted(rank for rank, host in hosts.items() if host == name) == list(ranks) else ''


def _size(file: StepTimesFile) -> float:
    """Tokens of a batch on average, or samples; 0 if that is not known."""
    rate = file.tokens_per_second or file.samples_per_second or 0.0
    return rate * file.seconds.get(TOTAL, {}).get('mean', 0.0)


def left_whole(
    summaries: Mapping[int, SnapshotSummary], trackers: Mapping[int, ModuleMemorySummary], ranks: Sequence[int]
) -> Iterator[LeftWhole]:
    """The large modules that FSDP left whole, on the rank that holds most."""
    found = [
        *((rank, summary.whole, summary.peak_bytes) for rank, summary in summaries.items()),
        *(
            (rank, file.whole, max((sizes.get('Total', 0) for sizes in file.peak.values()), default=0))
            for rank, file in trackers.items()
        ),
    ]
    rank, modules, peak = max(found, key=lambda each: sum(each[1].values()), default=(0, {}, 0))
    frees = int(_COPIES * sum(modules.values()) * (1 - 1 / max(len(ranks), 2)))
    if peak > 0 and frees >= LEAST * peak:
        yield LeftWhole(rank, min(frees / peak, 1.0), modules, frees)
