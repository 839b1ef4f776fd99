"""Time and memory to analyze a snapshot of a million events, compared with ``pickle.load`` of the same file.

Each measurement is a new process. Its memory is its peak without its imports, from VmHWM: the peak that ``getrusage``
gives for a child includes its parent's.
"""

from __future__ import annotations

import json
import pickle
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import child_environment

EVENTS = 1_000_000
_GOALS = {'time': 1.2, 'memory': 1.5}
_STACKS, _FRAMES, _SLOTS = 500, 20, 20_000

_CHILD = """
import json, os, pickle, sys, time
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from pathlib import Path
def held():
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) * 1024
what, path = sys.argv[1:]
at_first = held()
began = time.perf_counter()
if what == 'pickle':
    with open(path, 'rb') as file:
        kept = pickle.load(file)
else:
    kept = report_on(load_snapshot(Path(path)))
seconds = time.perf_counter() - began
print(json.dumps([seconds, held() - at_first]), flush=True)
os._exit(0)
"""


def analysis(rounds: int) -> None:
    for name, shared in (('stacks shared, as our CPU recorder writes', True), ('a stack each, as torch writes', False)):
        path = Path(f'{EVENTS}.pickle')
        with open(path, 'wb') as file:
            pickle.dump(_snapshot(EVENTS, shared), file, protocol=4)
        taken: dict[str, list[list[float]]] = {'pickle': [], 'answer': []}
        for number in range(rounds):
            for what in sorted(taken, reverse=number % 2 == 1):
                taken[what].append(_child(what, path))
        print(f'  {EVENTS} events, {path.stat().st_size / 1e6:.0f} MB, {name}')
        for what, label in (('pickle', 'pickle.load'), ('answer', 'load, peak, timeline and attribution')):
            seconds, held = (statistics.median(column) for column in zip(*taken[what]))
            print(f'  {label}: {seconds:.2f} s, {held / 1e9:.2f} GB')
        for column, (unit, goal) in enumerate(_GOALS.items()):
            ratios = [ours[column] / plain[column] for ours, plain in zip(taken['answer'], taken['pickle'])]
            ratio = statistics.median(ratios)
            print(
                f'analysis against pickle.load, {unit}: {ratio:.3f} '
                f'({min(ratios):.2f} to {max(ratios):.2f}; goal {goal:g}, {"reached" if ratio <= goal else "missed"})',
                flush=True,
            )
        path.unlink()


def _child(what: str, path: Path) -> list[float]:
    run = subprocess.run(
        [sys.executable, '-c', _CHILD, what, str(path)],
        capture_output=True,
        text=True,
        env=child_environment(),
        check=True,
    )
    return json.loads(run.stdout)


def _snapshot(events: int, shared: bool) -> dict[str, Any]:
    """The snapshot of a training that allocates and frees at random in 20,000 segments."""
    random_ = random.Random(0)
    files = [f'/home/me/project/part_{number}.py' for number in range(20)]
    files += [f'/x/lib/python3.11/site-packages/torch/nn/modules/part_{number}.py' for number in range(30)]
    frames = [
        {'filename': random_.choice(files), 'line': random_.randrange(1000), 'name': f'function_{number}'}
        for number in range(600)
    ]
    stacks = [random_.sample(frames, _FRAMES) for _ in range(_STACKS)]
    free = [0x7F0000000000 + (number << 21) for number in range(_SLOTS)]
    live: list[tuple[int, int, Any]] = []
    trace: list[dict[str, Any]] = []
    time = 1_700_000_000_000_000
    while len(trace) < events:
        time += random_.randrange(50)
        stack = random_.choice(stacks)
        stack = stack if shared else list(stack)
        if free and (not live or random_.random() < 0.52):
            address, size, actions = free.pop(), random_.randrange(1, 4096) * 512, ['alloc']
            live.append((address, size, stack))
        else:
            address, size, _ = live.pop(random_.randrange(len(live)))
            actions = ['free_requested', 'free_completed']
            free.insert(random_.randrange(len(free) + 1), address)
        for action in actions:
            event = {'action': action, 'addr': address, 'size': size, 'stream': 0, 'time_us': time, 'frames': stack}
            trace.append(event)
    segments = []
    for address, size, stack in live:
        block = {'address': address, 'size': size, 'requested_size': size, 'state': 'active_allocated', 'frames': stack}
        segments.append({'device': 0, 'address': address, 'total_size': 1 << 21, 'stream': 0, 'blocks': [block]})
    return {'segments': segments, 'device_traces': [trace], 'allocator_settings': {}, 'external_annotations': []}
