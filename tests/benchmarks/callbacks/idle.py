"""The cost of a batch's events, with callbacks outside of their windows."""

from __future__ import annotations

import statistics
import time

from composer import Trainer
from composer.core import Callback, Event

from composer_memprof import HostRSS, MemorySnapshot, TorchProfiler
from tests.benchmarks.figures import Report
from tests.benchmarks.trainers import trainer_of

NEVER = {'skip': '1000000ba', 'active': '1ba'}


class Empty(Callback):
    """What any callback costs in Composer's engine."""


#: What Composer's engine runs for each batch of one microbatch.
BATCH_EVENTS = [
    *(Event.BEFORE_DATALOADER, Event.AFTER_DATALOADER, Event.BATCH_START, Event.BEFORE_TRAIN_BATCH),
    *(Event.BEFORE_FORWARD, Event.AFTER_FORWARD, Event.BEFORE_LOSS, Event.AFTER_LOSS),
    *(Event.BEFORE_BACKWARD, Event.AFTER_BACKWARD, Event.AFTER_TRAIN_BATCH, Event.BATCH_END, Event.BATCH_CHECKPOINT),
]


def seconds_of_events(trainer: Trainer, batches: int) -> float:
    """Time of a batch's events alone, through Composer's own engine, without the training between them."""
    run_event, state = trainer.engine.run_event, trainer.state
    begin = time.perf_counter()
    for _ in range(batches):
        for event in BATCH_EVENTS:
            if event is Event.BATCH_END:
                state.timestamp = state.timestamp.to_next_batch(samples=2)
            run_event(event)
    return (time.perf_counter() - begin) / batches


def idle(rounds: int, report: Report) -> None:
    make: dict[str, list[Callback]] = {
        'none': [],
        'empty': [Empty(), Empty(), Empty()],
        'ours': [cls(schedule=NEVER) for cls in (MemorySnapshot, TorchProfiler, HostRSS)],
    }
    trainers = {name: trainer_of(callbacks, 3) for name, callbacks in make.items()}
    for trainer in trainers.values():
        trainer.fit()
    taken: dict[str, list[float]] = {name: [] for name in make}
    for _ in range(rounds * 30):
        for name, trainer in trainers.items():
            taken[name].append(seconds_of_events(trainer, 50))
    for trainer in trainers.values():
        trainer.close()
    added = {name: statistics.median(taken[name]) - statistics.median(taken['none']) for name in ('empty', 'ours')}
    print(f'  three empty Callbacks add {added["empty"] * 1e6:.1f} us a batch, ours {added["ours"] * 1e6:.1f} us')
    report('idle, our three against three empty ones, a batch', added['ours'] / added['empty'], 1.2)
