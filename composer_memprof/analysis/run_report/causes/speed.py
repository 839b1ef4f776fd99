"""Causes of slow steps: what takes the time of a batch beside training's own work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from composer_memprof.analysis.run_report.causes.kinds import LEAST, Collecting, Compiling, TimeTaken, Waiting
from composer_memprof.analysis.run_report.readers import StepTimesFile
from composer_memprof.recorders.step_times.lines import CALLBACKS, LOSS, METRICS, STEP
from composer_memprof.recorders.step_times.summary import DATA, REST, TOTAL
from composer_memprof.vocabulary import CHECKPOINT, DATALOADER, EVAL

#: Waiting less than this share of the time, or these seconds of each batch, is the cost of the loop itself.
_WAIT_SHARE, _LEAST_WAIT = 0.15, 0.002
#: In fewer batches, what takes time only at the start is not told apart.
_LEAST_BATCHES = 4
#: No run has more batches.
_MOST_BATCHES = 1 << 40
#: From this share of the time on a phase is a cause. It, and a full collection, came this often: one in a short run is none.
_SHARES, _OFTEN = {EVAL: 0.4, CHECKPOINT: 0.2}, 3
#: The same of what is between the phases, and the seconds of it that a batch has at least: the loop takes time too.
_REST_SHARE, _LEAST_REST = 0.3, 0.005
#: The same of what runs within training's own phases. On a GPU, the host's share of the time says nothing of the device's.
_WITHIN_SHARES, _HOST = {CALLBACKS: 0.3, METRICS: 0.3, LOSS: 0.4, STEP: 0.4}, 'host'
#: A line that takes less than this share of a phase does not stand for it.
_OF_PHASE = 0.4


def slow_parts(files: Mapping[int, StepTimesFile]) -> Iterator[Waiting | TimeTaken | Collecting | Compiling]:
    """What takes the time, each on the rank on which it takes longest."""
    within = map(_within, _WITHIN_SHARES)
    for find in (_waiting, _taken(EVAL), _taken(CHECKPOINT), _rest, *within, _collecting, _compiling):
        found = [
            cause
            for rank, file in files.items()
            if file.batches >= _LEAST_BATCHES and (cause := find(rank, file)) is not None
        ]
        yield from sorted(found, key=lambda cause: -cause.cost)[:1]


def _waiting(rank: int, file: StepTimesFile) -> Waiting | None:
    wait, batch = _wait(file), typical(file, TOTAL)
    if not batch or wait < max(_WAIT_SHARE * batch, _LEAST_WAIT):
        return None
    return Waiting(rank, min(wait / batch, 1.0), wait, batch, file.loader, main_line(file, DATALOADER))


def _wait(file: StepTimesFile) -> float:
    """Seconds that a rank waits for its own data. In ``dataloader`` it also waits for the other ranks' data."""
    own = typical(file, DATA)
    return min(own, typical(file, DATALOADER)) if own else typical(file, DATALOADER)


def typical(file: StepTimesFile, part: str) -> float:
    """The mean without the longest, in which workers start."""
    times = file.seconds.get(part, {})
    if not 2 <= file.batches <= _MOST_BATCHES or not {'mean', 'max'} <= times.keys():
        return times.get('p50', 0.0)
    return max(times['mean'] * file.batches - times['max'], 0.0) / (file.batches - 1)


def _taken(phase: str) -> Callable[[int, StepTimesFile], TimeTaken | None]:
    def find(rank: int, file: StepTimesFile) -> TimeTaken | None:
        share, often = file.share.get(phase, 0.0), file.batches_with.get(phase, 0)
        if share < _SHARES[phase] or often < _OFTEN:
            return None
        return TimeTaken(
            rank, min(share, 1.0), phase, file.seconds.get(phase, {}).get('mean', 0.0), main_line(file, phase)
        )

    return find


def _rest(rank: int, file: StepTimesFile) -> TimeTaken | None:
    rest, batch, line = typical(file, REST), typical(file, TOTAL), main_line(file, REST)
    if not line:  # a few long ones are no callback of the user's: a window of a profiler opens or closes in them
        rest = min(rest, file.seconds.get(REST, {}).get('p50', rest))
    if not batch or rest < max(_REST_SHARE * batch, _LEAST_REST):
        return None
    return TimeTaken(rank, min(rest / batch, 1.0), REST, rest, line)


def _within(whose: str) -> Callable[[int, StepTimesFile], TimeTaken | None]:
    def find(rank: int, file: StepTimesFile) -> TimeTaken | None:
        share = file.within_phases.get(whose, 0.0)
        seconds = share * typical(file, TOTAL)
        if file.clock != _HOST or share < _WITHIN_SHARES[whose] or seconds < _LEAST_REST:
            return None
        return TimeTaken(rank, min(share, 1.0), whose, seconds, main_line(file, whose))

    return find


def _collecting(rank: int, file: StepTimesFile) -> Collecting | None:
    cost = _share(file.pauses.collecting, file)
    if cost < LEAST or file.pauses.collections < _OFTEN:
        return None
    return Collecting(rank, cost, file.pauses.collecting, file.pauses.collections)


def _compiling(rank: int, file: StepTimesFile) -> Compiling | None:
    cost = _share(sum(each.seconds for each in file.pauses.compiled), file)
    return Compiling(rank, cost, file.pauses.compiled[0]) if cost >= LEAST else None


def _share(seconds: float, file: StepTimesFile) -> float:
    """The share of the time of all batches."""
    whole = file.seconds.get(TOTAL, {}).get('mean', 0.0) * min(file.batches, _MOST_BATCHES)
    return min(max(seconds / whole, 0.0), 1.0) if whole > 0 else 0.0


def main_line(file: StepTimesFile, phase: str) -> str:
    """The line that takes most of a phase; ``''`` if none does."""
    line, share = max(file.lines.get(phase, {}).items(), key=lambda item: item[1], default=('', 0.0))
    return line if share >= _OF_PHASE else ''
