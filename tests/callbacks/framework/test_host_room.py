"""Host memory near a limit: windows begin only if there is room, and end before what they take kills the training."""

from __future__ import annotations

import math
import subprocess
from dataclasses import dataclass, field
from typing import Any, Optional

import pytest

from composer_memprof.artifacts.writing.child.memory import Room
from composer_memprof.callbacks.framework.windows import host_room as rooms
from composer_memprof.callbacks.framework.windows.exclusive import KINETO
from composer_memprof.callbacks.framework.windows.host_room import HostRoom
from composer_memprof.recorders.host_memory import allocated_bytes
from composer_memprof.recorders.kineto import KinetoRecorder
from tests.support.cgroups import memory_cgroup as memory_cgroup
from tests.support.stores import run_script

pytestmark = pytest.mark.slow

MIB = 1 << 20


@dataclass(eq=False)
class Window:
    """Stands for a callback that records."""

    name: str
    resources: frozenset[str] = frozenset()
    kineto: Optional[KinetoRecorder] = None
    session: Any = field(init=False)

    def __post_init__(self) -> None:
        self.session = self.kineto or self


def profiler(**arguments: Any) -> Window:
    return Window('profiler', frozenset({KINETO}), KinetoRecorder(**arguments))


class Machine:
    """What the process has, and what is left, in MiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: float) -> None:
        self.free, self.used, self.allocated = free, 500.0, 400.0
        room = lambda: Room(int(self.free * MIB), 100 * MIB, 'below the limit of 1.0 GiB', int(self.used * MIB))  # noqa: E731
        monkeypatch.setattr(rooms, 'room_for_child', room)
        monkeypatch.setattr(rooms, 'allocated_bytes', lambda: int(self.allocated * MIB))
        monkeypatch.setattr(rooms, '_LOOK_S', 0.0)
        monkeypatch.setattr(rooms, '_LOOK_OF_OTHERS_S', 0.0)
        monkeypatch.setattr(rooms, '_LOOKS_SHARE', math.inf)

    def record(self, mib: float) -> None:
        self.free, self.used, self.allocated = self.free - mib, self.used + mib, self.allocated + mib


def test_a_window_begins_only_if_it_fits_in_beside_the_open_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, room = Machine(monkeypatch, free=170), HostRoom()
    first, second = profiler(), Window('another')
    assert room.why_not(first) is None
    room.opened(first)
    why = room.why_not(second)
    assert why == ('memory is short: 170.0 MiB left below the limit of 1.0 GiB, and recording it may take 172.0 MiB')
    machine.free = 180
    assert room.why_not(second) is None


@pytest.mark.parametrize('profiler_comes_first', [True, False])
def test_what_hooks_operations_needs_much_beside_a_profiler_that_follows_calls(
    monkeypatch: pytest.MonkeyPatch, profiler_comes_first: bool
) -> None:
    Machine(monkeypatch, free=1000)
    room, windows = HostRoom(), [profiler(with_stack=True), Window('tracker')]
    first, second = windows if profiler_comes_first else windows[::-1]
    assert room.why_not(first) is None
    room.opened(first)
    assert 'may take 1.' in (room.why_not(second) or '')
    room.closed(first)
    assert room.why_not(second) is None


def test_the_costliest_window_ends_before_its_end_takes_more_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, room = Machine(monkeypatch, free=1000), HostRoom()
    costly, cheap = profiler(), Window('cheap')
    for window in (cheap, costly):
        room.opened(window)
    ended = []
    for batch in range(40):
        machine.record(10)
        if room.why_end(costly) is not None:
            ended.append(batch)
            break
        assert room.why_end(cheap) is None
    # 100 for the child, 10 for the next batch, and twelve times what is allocated by then: 10 a batch, and once more.
    assert 100 + 10 + 12 * (10 * (ended[0] + 1) + 10) > machine.free >= 100 + 10 + 12 * 10 * ended[0]
    room.closed(costly)
    assert room.why_end(cheap) is None, 'it goes on'


def test_callbacks_that_share_a_session_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, room = Machine(monkeypatch, free=300), HostRoom()
    one = profiler()
    other = Window('shares', one.resources, one.kineto)
    for window in (one, other):
        room.opened(window)
    machine.record(100)
    assert room.why_end(one) == room.why_end(other) != None  # noqa: E711


def test_what_malloc_gives_out_is_counted() -> None:
    import ctypes

    malloc = ctypes.CDLL(None).malloc
    malloc.restype = ctypes.c_void_p
    before = allocated_bytes()
    if not before:
        pytest.skip("malloc is not glibc's, or too old to tell")
    block = malloc(64 * MIB)
    assert allocated_bytes() - before >= 64 * MIB
    ctypes.CDLL(None).free(ctypes.c_void_p(block))


ALL_CALLBACKS = """
    import os, sys
    from pathlib import Path
    limit = Path(sys.argv[1])
    (limit.parent / 'cgroup.procs').write_text(str(os.getpid()))
    import torch
    from composer.core import Callback
    from torch import nn
    from composer_memprof import (
        FSDPMemTracker, Flops, HostRSS, MemProfiler, Memray, MemorySnapshot, SavedTensorsHook, StepTimes, TorchProfiler,
        VizTracer,
    )
    from composer_memprof.cgroup import Cgroup
    from tests.conftest import FEATURES, Regression, train

    class Deep(Regression):
        def __init__(self):
            super().__init__()
            blocks = [nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, FEATURES), nn.GELU()) for _ in range(60)]
            self.net = nn.Sequential(*blocks, self.net)

    class Limit(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch == 2:
                limit.write_text(str(Cgroup().read().usage + (int(sys.argv[2]) << 20)))

    window = lambda skip, active=8: {'skip': f'{skip}ba', 'active': f'{active}ba'}
    train(
        MemorySnapshot(schedule=window(4)), TorchProfiler(schedule=window(14)), Memray(schedule=window(26)),
        VizTracer(schedule=window(36)), FSDPMemTracker(schedule=window(4, 40)), SavedTensorsHook(schedule=window(4, 40)),
        Flops(), MemProfiler(), HostRSS(), StepTimes(), Limit(), batches=50, model=Deep(),
    )
    print('trained')
"""


@pytest.mark.parametrize('mib', [500, 300, 120])
def test_all_callbacks_together_near_a_memory_limit_do_not_kill_the_training(memory_cgroup: Any, mib: int) -> None:
    run = run_script(ALL_CALLBACKS, str(memory_cgroup), str(mib), run=subprocess.run)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.endswith('trained\n')
    assert 'memory is short' in run.stderr
