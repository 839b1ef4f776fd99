"""Causes of slow steps: what takes the time of a batch beside training's own work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Union

from composer_memprof.analysis.run_report.causes.kinds import (
    LEAST,
    WORKERS,
    Collecting,
    Compiling,
    Slowing,
    SmallMicrobatches,
    TimeTaken,
    Waiting,
)
from composer_memprof.analysis.run_report.readers import StepTimesFile
from composer_memprof.recorders.step_times.lines import (
    ALGORITHMS,
    CALLBACKS,
    LOOP,
    LOSS,
    METRICS,
    OF_MODEL,
    SAMPLER,
    STEP,
)
from composer_memprof.recorders.step_times.summary import DATA, PARTS, REST, SIZE, TOTAL
from composer_memprof.vocabulary import BACKWARD, CHECKPOINT, DATALOADER, EVAL, FORWARD

#: Waiting less than this share of the time, or these seconds of each batch, is the cost of the loop itself.
_WAIT_SHARE, _LEAST_WAIT = 0.15, 0.002
#: The same share where fewer than one batch in ten waits as long: a busy machine makes some wait.
_RARE_WAIT_SHARE = 0.3
#: In fewer batches, what takes time only at the start is not told apart.
_LEAST_BATCHES = 4
#: No run has more batches.
_MOST_BATCHES = 1 << 40
#: From this share of the time on a phase is a cause. It, and a full collection, came this often: one in a short run is none.
_SHARES, _OFTEN = {EVAL: 0.4, CHECKPOINT: 0.2}, 3
#: The same of what is between the phases, and the seconds of it that a batch has at least: the loop takes time too.
_REST_SHARE, _LEAST_REST, _REST_WITHOUT_LINE = 0.3, 0.005, 0.4
#: The same of what runs within training's own phases. On a GPU, the host's share of the time says nothing of the device's.
_WITHIN_SHARES = {CALLBACKS: 0.3, ALGORITHMS: 0.3, METRICS: 0.3, LOSS: 0.4, STEP: 0.4, LOOP: 0.3}
_HOST = 'host'
#: So many full collections are no part of a warm-up.
_COLLECTIONS = 5
#: The start of workers is this share of what the first batches of epochs wait.
_OF_STARTS = 0.5
#: The sampler explains waiting of which it is this share.
_OF_WAITING = 0.5
#: Microbatches are small if a batch has so many, each of so few samples and tokens, that takes so many seconds at most; and
#: what the time of forward and backward may fall by.
_MANY, _FEW_SAMPLES, _FEW_TOKENS, _SHORT, _MAY_FALL = 8, 2, 512, 0.01, 0.5
#: Batches slow down if each quarter takes so many times as long as the one before, and the last so many times as long as the
#: first, and so many seconds longer.
_SLOWER, _SLOWED, _LEAST_SLOWER = 1.1, 1.5, 0.003
#: One phase takes this share of what batches take longer.
_OF_MORE = 0.6
#: A line that takes less than this share of a phase does not stand for it.
_OF_PHASE = 0.4


Slow = Union[Waiting, TimeTaken, Slowing, Collecting, Compiling, SmallMicrobatches]


def slow_parts(files: Mapping[int, StepTimesFile]) -> Iterator[Slow]:
    """What takes the time, each on the rank on which it takes longest."""
    within = map(_within, _WITHIN_SHARES)
    kinds = (
        _waiting,
        _taken(EVAL),
        _taken(CHECKPOINT),
        _rest,
        *within,
        _starting,
        _slowing,
        _collecting,
        _compiling,
        _small,
    )
    for find in kinds:
        found = [
            cause
            for rank, file in files.items()
            if file.batches >= _LEAST_BATCHES and (cause := find(rank, file)) is not None
        ]
        yield from sorted(found, key=lambda cause: -cause.cost)[:1]


def _waiting(rank: int, file: StepTimesFile) -> Waiting | None:
    wait, batch = _wait(file), typical(file, TOTAL)
    least = max(_WAIT_SHARE * batch, _LEAST_WAIT)
    if not batch or wait < (least if _nine_in_ten(file) >= least else max(_RARE_WAIT_SHARE * batch, least)):
        return None
    share = min(wait / batch, 1.0)
    is_sampler = file.within_phases.get(SAMPLER, 0.0) >= _OF_WAITING * share
    line = main_line(file, SAMPLER if is_sampler else DATALOADER)
    return Waiting(rank, share, wait, batch, file.loader, line, is_sampler)


def _wait(file: StepTimesFile) -> float:
    """Seconds that a rank waits for its own data. In ``dataloader`` it also waits for the other ranks' data."""
    own, whole = typical(file, DATA), typical(file, DATALOADER)
    return min(own, whole) if own else whole


def _nine_in_ten(file: StepTimesFile) -> float:
    """Seconds that nine in ten batches wait at most for a rank's own data."""
    return file.seconds.get(DATA if typical(file, DATA) else DATALOADER, {}).get('p90', 0.0)


def waiting_share(file: StepTimesFile) -> float:
    """The share of the time that a rank waits for data, without the start of its workers."""
    batch, share = file.seconds.get(TOTAL, {}).get('mean', 0.0), file.share.get(DATALOADER, 0.0)
    own = file.seconds.get(DATA, {}).get('mean', 0.0)
    waiting = min(share, own / batch) if own and batch else share
    return max(waiting - _share(worker_starts(file), file), 0.0)


def typical(file: StepTimesFile, part: str) -> float:
    """The mean without the longest, and without what the start of workers takes in the first batches of epochs."""
    times = file.seconds.get(part, {})
    if not 2 <= file.batches <= _MOST_BATCHES or not {'mean', 'max'} <= times.keys():
        return times.get('p50', 0.0)
    whole = times['mean'] * file.batches - times['max']
    if part in (TOTAL, DATA, DATALOADER):  # the longest may have been one of them
        starts = worker_starts(file)
        whole -= max(starts - times['max'], 0.0) + (file.epoch_starts.others if starts else 0.0)
    return max(whole, 0.0) / (file.batches - 1)


def worker_starts(file: StepTimesFile) -> float:
    """Seconds of the first batches of all epochs that the start of workers takes: what is longer than a worker's first batch."""
    if file.loader is None or not file.loader.num_workers:
        return 0.0
    starts, a_batch = file.epoch_starts, _batch_of_a_worker(file)
    return max(starts.first - a_batch, 0.0) + max(starts.seconds - starts.count * a_batch, 0.0)


def _batch_of_a_worker(file: StepTimesFile) -> float:
    """Seconds at most that a worker needs for a batch: all of them keep up with the training, or it waits in each batch."""
    workers = 0 if file.loader is None else file.loader.num_workers
    return workers * file.seconds.get(TOTAL, {}).get('p50', 0.0)


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
    rest -= file.loader_starts.seconds / file.batches  # has a cause of its own
    rest -= file.within_phases.get(OF_MODEL, 0.0) * batch  # of a second model, which a loop's phases do not follow
    if not line:  # a few long ones are no callback of the user's: a window of a profiler opens or closes in them
        rest = min(rest, file.seconds.get(REST, {}).get('p50', rest))
    if not batch or rest < max((_REST_SHARE if line else _REST_WITHOUT_LINE) * batch, _LEAST_REST):
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


def _starting(rank: int, file: StepTimesFile) -> TimeTaken | None:
    """A DataLoader that starts its workers anew in each epoch."""
    starts, epochs = file.loader_starts, file.epoch_starts
    if file.loader is None or not file.loader.num_workers or file.loader.persistent_workers:
        return None
    later = epochs.seconds - epochs.count * _batch_of_a_worker(file)
    waits = worker_starts(file) if epochs.count and later >= _OF_STARTS * epochs.seconds else 0.0
    seconds = (starts.seconds if starts.count >= _OFTEN else 0.0) + waits
    cost = _share(seconds, file)
    if cost < LEAST:
        return None
    first = epochs.seconds / epochs.count if waits else 0.0
    return TimeTaken(rank, cost, WORKERS, seconds / file.batches, '', first, _wait(file))


def _slowing(rank: int, file: StepTimesFile) -> Slowing | None:
    """Each quarter of the batches but the second is slower than the one before, though its batches are no larger."""
    quarters = file.quarters
    if len(quarters) < 2 or any({*PARTS, TOTAL} - each.keys() for each in quarters):
        return None
    first, last = quarters[0], quarters[-1]
    more = last[TOTAL] - first[TOTAL]
    later = quarters[1:]  # the first batches are slow for reasons of their own
    slower = all(late[TOTAL] >= _SLOWER * early[TOTAL] for early, late in zip(later, later[1:]))
    larger = last.get(SIZE, 0) > _SLOWER * first.get(SIZE, 0)
    if not slower or larger or more < _LEAST_SLOWER or more < (_SLOWED - 1) * first[TOTAL]:
        return None
    phase = max(PARTS, key=lambda part: last[part] - first[part])
    if last[phase] - first[phase] < _OF_MORE * more:  # everything is slower, as on a machine with other processes
        return None
    return Slowing(rank, more / last[TOTAL], phase, first[TOTAL], last[TOTAL], main_line(file, phase))


def _collecting(rank: int, file: StepTimesFile) -> Collecting | None:
    cost = _share(file.pauses.collecting, file)
    if cost < LEAST or file.pauses.collections < _COLLECTIONS:
        return None
    return Collecting(rank, cost, file.pauses.collecting, file.pauses.collections)


def _small(rank: int, file: StepTimesFile) -> SmallMicrobatches | None:
    """Microbatches so small that what a forward pass costs beside its work counts most."""
    count, batch = file.microbatches, typical(file, TOTAL)
    if count < _MANY or not batch or not file.samples_per_second:
        return None
    work = typical(file, FORWARD) + typical(file, BACKWARD)
    mean = file.seconds.get(TOTAL, {}).get('mean', 0.0)
    samples, tokens = (mean * (rate or 0.0) / count for rate in (file.samples_per_second, file.tokens_per_second))
    if samples > _FEW_SAMPLES or tokens > _FEW_TOKENS or work / count > _SHORT:
        return None
    return SmallMicrobatches(rank, min(_MAY_FALL * work / batch, 1.0), round(count), samples, work / count)


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
