"""What a simulation costs, against importing Composer, which any training must: ``make bench ARGS=simulation``."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from composer_memprof.simulated_gpu import ranks
from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with
from tests.benchmarks.figures import Report
from tests.benchmarks.measured import measure

ROOT = Path(__file__).parents[3]

#: 1.0 B parameters, and 65 B with each block checkpointed, of the package's GPT.
_1B = ('model.d_model=2048', 'model.n_heads=16', 'model.n_layers=20', 'model.init_device=meta')
_65B = (
    *('model.d_model=8192', 'model.n_heads=64', 'model.n_layers=80', 'model.init_device=meta'),
    'parallelism_config.fsdp2.activation_checkpointing=true',
)
_MOST_ROUNDS = 3
#: The project's own budget of its FSDP2 config on 8 ranks.
_CHECK = ('-m', 'composer_memprof', 'check', '--budget', 'tests/budget/memory_budget.yaml', '--name', 'fsdp2')


def simulation(rounds: int, report: Report) -> None:
    """Report each ratio and its goal."""
    imports: list[float] = []
    plans: dict[int, list[float]] = {8: [], 8192: []}
    for _ in range(min(rounds, _MOST_ROUNDS)):
        imports.append(_seconds_to_import())
        for number, seconds in plans.items():
            seconds.append(_plan(number, *_1B)[0])
    for number, goal in ((8, 1.5), (8192, 3.0)):
        ratio = statistics.median(plan / one for plan, one in zip(plans[number], imports, strict=True))
        report(f'plan of 1.0 B under FSDP2 on {number} ranks against import composer', ratio, goal)
    checks = [_cpu_seconds(*_CHECK) / _cpu_seconds('-c', 'import composer') for _ in range(min(rounds, _MOST_ROUNDS))]
    report('check of the FSDP2 config on 8 ranks against import composer, CPU time', statistics.median(checks), 1.5)
    steps = [_step('simulated') / _step('fake') for _ in range(min(rounds, _MOST_ROUNDS))]
    report("a simulated FSDP2 step against torch's FSDPMemTracker on fake tensors", statistics.median(steps), 0.5)
    timed = [_step('timed') / _step('simulated') for _ in range(min(rounds, _MOST_ROUNDS))]
    report('a simulated FSDP2 step that is timed against one that is not', statistics.median(timed), 1.3)
    plan = 'plan of 65 B under FSDP2 on 1,024 ranks'
    report(f'{plan}, in minutes', _plan(1024, *_65B)[0] / 60, 1.0)
    took, gigabytes = _plan(1024, *_65B, changes=True)
    report(f'{plan} with all its changes, in minutes', took / 60, 1.0)
    report(f'{plan} with all its changes, GB of host memory', gigabytes, 2.0)


def _plan(number: int, *overrides: str, changes: bool = False) -> tuple[float, float]:
    """The seconds and the GB of host memory."""
    loader = ('train_loader.batch_size=1', f'train_loader.max_bytes={max(1_000_000, 200 * number)}')
    options = () if changes else ('--no-changes',)
    return measure('plan', 'fsdp2', *options, '--ranks', str(number), *overrides, *loader)


def _step(how: str) -> float:
    simulated = {**environment_with(find_device('h100-80gb'), devices=8), **ranks.environment(8)}
    environment = dict(os.environ) if how == 'fake' else simulated
    command = [sys.executable, '-m', 'tests.benchmarks.simulation.simulated_step', how]
    ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(ran.stdout.splitlines()[-1])


def _seconds_to_import() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, '-c', 'import composer'], check=True)
    return time.perf_counter() - began


def _cpu_seconds(*arguments: str) -> float:
    """Of Python with these arguments, and of the processes that it starts: user and system together."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ran.returncode == 0, f'{arguments} ended with code {ran.returncode}'
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
