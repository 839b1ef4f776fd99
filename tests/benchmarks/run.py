"""What the callbacks cost, as ratios from one run on this machine: ``make bench``.

Everything that is compared runs in turn, round after round, so that a machine that slows down slows both; a ratio is
the median over the rounds. Each line gives the figure, the ratio, and the goal. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import torch
from composer import Trainer
from composer.core import Callback, Event
from torch.profiler import ProfilerActivity

from composer_memprof import HostRSS, MemorySnapshot, StepTimes, TorchProfiler
from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.examples.text_files import text_files
from tests.benchmarks.analysis.analysis import analysis
from tests.benchmarks.analysis.page import page
from tests.benchmarks.analysis.python_calls import python_calls
from tests.benchmarks.analysis.run_report import run_report
from tests.benchmarks.artifacts.child import child
from tests.benchmarks.artifacts.kills import kills
from tests.benchmarks.artifacts.soak import soak
from tests.benchmarks.artifacts.uploads import uploads
from tests.benchmarks.callbacks.flops import flops
from tests.benchmarks.callbacks.fsdp_mem_tracker import fsdp_mem_tracker
from tests.benchmarks.callbacks.hold import hold, hold_gpu
from tests.benchmarks.callbacks.mem_profiler import mem_profiler
from tests.benchmarks.callbacks.saved_tensors import saved_tensors
from tests.benchmarks.callbacks.training import step_ratio
from tests.benchmarks.simulation.simulation import simulation
from tests.conftest import Regression, loader

NEVER = {'skip': '1000000ba', 'active': '1ba'}


class BatchTimer(Callback):
    """Seconds from each batch's start to its end, as the training thread sees it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def batch_start(self, state: Any, logger: Any) -> None:
        self._began = time.perf_counter()

    def batch_end(self, state: Any, logger: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)


class Empty(Callback):
    """What any callback costs in Composer's engine."""


def trainer_of(
    callbacks: list[Callback], batches: int, model: Optional[Any] = None, data: Any = None, device: str = 'cpu'
) -> Trainer:
    model = model or Regression()
    return Trainer(
        model=model,
        train_dataloader=data or loader(batches, batch_size=2),
        optimizers=torch.optim.SGD(model.parameters(), lr=1e-4),
        max_duration=f'{batches}ba',
        callbacks=callbacks,
        run_name='bench',
        device=device,
        seed=1,
        progress_bar=False,
    )


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


def idle(rounds: int) -> None:
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


def gpt_trainer(callbacks: list[Callback], batches: int, device: str = 'cpu') -> Trainer:
    torch.manual_seed(0)
    data = text_files('{stdlib}/*.py', batch_size=8, seq_len=64, max_bytes=1_000_000)
    return trainer_of(callbacks, batches, ByteGPT(d_model=96, n_layers=3, max_seq_len=64), data, device)


class BareProfile(Callback):
    """torch's profiler by hand over the same batches, with the same switches."""

    def __init__(self, first: int, last: int, **arguments: Any) -> None:
        self.first, self.last = first, last
        self.profile = torch.profiler.profile(activities=[ProfilerActivity.CPU], **arguments)

    def batch_start(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value == self.first:
            self.profile.prepare_trace()
            self.profile.start_trace()

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value == self.last:
            self.profile.stop_trace()


def profiling(rounds: int) -> None:
    first, active, batches = 5, 30, 40
    switches = {'profile_memory': True, 'with_flops': True, 'record_shapes': False, 'with_stack': False}
    make: dict[str, Callable[[], Callback]] = {
        'bare': lambda: BareProfile(first, first + active, **switches),
        'ours': lambda: TorchProfiler(schedule={'skip': f'{first}ba', 'active': f'{active}ba'}, **switches),
    }
    medians: dict[str, list[float]] = {name: [] for name in make}
    for number in range(rounds * 3):
        for name in sorted(make, reverse=number % 2 == 1):
            times = BatchTimer()
            # Between them, so that each step's own end is in it, and the window's end is not.
            trainer = gpt_trainer([times, make[name]()], batches)
            trainer.fit()
            medians[name].append(statistics.median(times.seconds[first + 1 : first + active - 1]))
            trainer.close()
    ratio = statistics.median(ours / bare for ours, bare in zip(medians['ours'], medians['bare']))
    print(f'  a step under bare torch.profiler: {statistics.median(medians["bare"]) * 1e3:.2f} ms')
    report('TorchProfiler active against bare torch.profiler, a step', ratio, 1.05)


def quickstart_trainer(callbacks: list[Callback]) -> Trainer:
    """The model, data and batch of yamls/quickstart.yaml."""
    torch.manual_seed(0)
    return trainer_of(callbacks, 1, ByteGPT(), text_files('{stdlib}/*.py'))


def sampling(rounds: int) -> None:
    chunk = 20
    make: dict[str, Callable[[], list[Callback]]] = {
        'none': list,
        '2 Hz': lambda: [HostRSS(interval=0.5)],
        '10 Hz': lambda: [HostRSS(interval=0.1)],
    }
    times = {name: BatchTimer() for name in make}
    trainers = {name: quickstart_trainer([times[name], *callbacks()]) for name, callbacks in make.items()}
    taken: dict[str, list[float]] = {name: [] for name in make}
    names = list(make)
    for number in range(rounds * 3 + 1):
        for name in names[number % 3 :] + names[: number % 3]:  # each in each place
            trainers[name].fit(duration=f'{chunk}ba')
            if number:  # the first is the warm-up; so is each chunk's beginning, with the window's own start
                taken[name].append(statistics.fmean(times[name].seconds[-chunk + 2 :]))
    for trainer in trainers.values():
        trainer.close()
    print(
        f'  a step without: {statistics.median(taken["none"]) * 1e3:.1f} ms, {len(taken["none"])} x {chunk} steps each'
    )
    for name in ('2 Hz', '10 Hz'):
        ratios = [on / off for on, off in zip(taken[name], taken['none'])]
        report(f'HostRSS at {name} against none, a step', statistics.median(ratios), 1.01)
        quarters = statistics.quantiles(ratios, n=4)
        print(f'  middle half of the ratios: {quarters[0]:.3f} to {quarters[2]:.3f}')


def stand_by(rounds: int) -> None:
    """What it costs to be ready for the day when memory runs out, on a CPU: the whole fit, not steps alone."""
    chunk = 20
    make: dict[str, Callable[[], list[Callback]]] = {
        'none': list,
        'ours': lambda: [MemorySnapshot(schedule=NEVER, on_oom=True)],
    }
    trainers = {name: quickstart_trainer(callbacks()) for name, callbacks in make.items()}
    taken: dict[str, list[float]] = {name: [] for name in make}
    for number in range(rounds + 1):
        for name in sorted(make, reverse=number % 2 == 1):
            begin = time.perf_counter()
            trainers[name].fit(duration=f'{chunk}ba')
            if number:
                taken[name].append((time.perf_counter() - begin) / chunk)
    for trainer in trainers.values():
        trainer.close()
    print(f'  a step without: {statistics.median(taken["none"]) * 1e3:.1f} ms')
    ratio = statistics.median(ours / none for ours, none in zip(taken['ours'], taken['none']))
    print(f'MemorySnapshot(on_oom=True) on a CPU, outside of windows, against none, a step: {ratio:.3f} (no goal)')


def report(what: str, ratio: float, goal: float) -> None:
    print(f'{what}: {ratio:.3f} (goal {goal:g}, {"reached" if ratio <= goal else "missed"})', flush=True)


BENCHMARKS: dict[str, Callable[[int], None]] = {
    'idle': idle,
    'profiling': profiling,
    'sampling': sampling,
    'stand_by': stand_by,
    'analysis': analysis,
    'page': page,
    'hold': hold,
    'child': lambda rounds: child(min(rounds, 3), report),
    'run_report': lambda rounds: run_report(min(rounds, 3), report),
    'simulation': lambda rounds: simulation(rounds, report),
    'hold_gpu': hold_gpu,
    'saved_tensors': lambda rounds: saved_tensors(rounds, report),
    'fsdp_mem_tracker': fsdp_mem_tracker,
    'mem_profiler': lambda rounds: mem_profiler(rounds, report),
    'flops': lambda rounds: flops(rounds, report),
    'python_calls': python_calls,
    'uploads': lambda rounds: uploads(rounds, report),
    'step_times': lambda rounds: report('StepTimes against none, a step', step_ratio(rounds, StepTimes), 1.02),
}

#: Run only if they are named: they take a quarter of an hour and more.
LONG: dict[str, Callable[[int], None]] = {'kills': kills, 'soak': soak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'names', nargs='*', choices=[*BENCHMARKS, *LONG, []], help=f'which to run; default: all but {", ".join(LONG)}'
    )
    parser.add_argument('--rounds', type=int, default=7, help='times that each is repeated')
    options = parser.parse_args()
    warnings.simplefilter('ignore')
    print(f'{os.cpu_count()} cores, torch {torch.__version__}, {options.rounds} rounds')
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in options.names or BENCHMARKS:
            print(f'\n{name}', flush=True)
            {**BENCHMARKS, **LONG}[name](options.rounds)
        os.chdir(Path(folder).parent)


if __name__ == '__main__':
    main()
