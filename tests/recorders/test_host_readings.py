"""Readings of host memory and its limit, and the growth of a series of them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from composer_memprof import HostRSS
from composer_memprof.cgroup import Cgroup
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.host.processes import ProcessReader, child_pids, process_details
from composer_memprof.recorders.host.recorder import HostMemoryRecorder
from composer_memprof.recorders.host.trend import Series, estimate_trend
from tests.conftest import train
from tests.support.callbacks.host_memory import MIB, fresh_memory


@settings(max_examples=60, deadline=None)
@given(
    leak=st.sampled_from([0.5, 1.0, 8.0]),
    batches=st.integers(60, 2000),
    noise=st.floats(0, 3.0),
    warmup=st.integers(0, 400),
    seed=st.integers(0, 10_000),
)
def test_steady_growth_is_clear_and_its_interval_holds_the_rate(
    leak: float, batches: int, noise: float, warmup: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    x = np.arange(batches)
    y = (500 + warmup * (1 - np.exp(-x / 5)) + leak * x + random.normal(0, noise, batches)) * MIB
    series = Series()
    for batch, size in zip(x, y):
        series.add(int(batch), int(size))
    trend = series.trend()
    assert trend is not None
    assert trend.clear == (leak * batches * 2 / 3 > 8) or noise > leak
    assert trend.per_batch == pytest.approx(leak * MIB, rel=0.25, abs=noise * MIB / 10)
    assert trend.low <= trend.per_batch <= trend.high


@settings(max_examples=100, deadline=None)
@example(batches=40, noise=3.0, steps=[(0.625, 10.0)], saturation=1.0, seed=0)
@given(
    batches=st.integers(40, 2000),
    noise=st.floats(0, 5.0),
    steps=st.lists(st.tuples(st.floats(0, 1), st.floats(10, 900)), max_size=2),
    saturation=st.floats(1, 40),
    seed=st.integers(0, 10_000),
)
def test_noise_steps_and_warm_ups_are_no_leak(
    batches: int, noise: float, steps: list[tuple[float, float]], saturation: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    x = np.arange(batches)
    y = 500 + 300 * (1 - np.exp(-x / min(saturation, batches / 20))) + random.normal(0, noise, batches)
    for place, size in steps:
        y += np.where(x > place * batches, size, 0)
    trend = estimate_trend(list(x), list(y * MIB))
    assert trend is None or not trend.clear


def test_a_series_of_any_length_is_held_in_bounded_memory() -> None:
    series = Series(capacity=64)
    for batch in range(100_000):
        series.add(batch, batch)
    assert len(series.batches) < 64
    assert series.batches[-1] > 97_000
    assert estimate_trend([1, 2, 3], [1, 2, 3]) is None


def test_readings_agree_with_the_kernels_own_and_see_an_allocation() -> None:
    reader = ProcessReader()
    before = reader.rss()
    ballast = [fresh_memory() for _ in range(64)]
    after = reader.rss()
    assert 60 * MIB < after - before < 80 * MIB
    info = psutil.Process().memory_info()
    usage = reader.read()
    assert usage.rss == pytest.approx(info.rss, rel=0.05)
    assert usage.vms == pytest.approx(info.vms, rel=0.05)
    assert len(ballast) == 64
    reader.close()


def test_the_details_are_all_there_on_linux() -> None:
    assert set(process_details()) >= {'uss', 'pss', 'threads', 'open_files', 'minor_faults', 'major_faults'}


def test_children_are_found_oldest_first() -> None:
    children = [subprocess.Popen(['sleep', '30']) for _ in range(3)]
    try:
        found = [pid for pid in child_pids(os.getpid()) if pid in {child.pid for child in children}]
        assert found == [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    with pytest.raises(OSError):
        ProcessReader(children[0].pid)


def cgroup_files(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)


def test_a_version_2_cgroup_gives_usage_without_cache_and_the_tightest_limit(tmp_path: Path) -> None:
    root, membership = tmp_path / 'cgroup', tmp_path / 'membership'
    membership.write_text('0::/job/step\n')
    cgroup_files(root, {'cgroup.controllers': 'memory'})
    cgroup_files(root / 'job', {'memory.current': '9000', 'memory.max': '4096', 'memory.stat': ''})
    stat = 'anon 1\ninactive_file 1000\n'
    cgroup_files(root / 'job' / 'step', {'memory.current': '3000', 'memory.max': 'max', 'memory.stat': stat})
    reading = Cgroup(root, membership).read()
    assert reading is not None
    assert (reading.usage, reading.limit) == (2000, 4096)


def test_a_version_1_cgroup_is_read_too_and_no_limit_is_none(tmp_path: Path) -> None:
    root, membership = tmp_path / 'cgroup', tmp_path / 'membership'
    membership.write_text('5:cpu:/x\n4:memory:/not-shown-here\n0::/\n')
    files = {'memory.usage_in_bytes': '3000', 'memory.limit_in_bytes': str(2**63 - 4096), 'memory.stat': ''}
    cgroup_files(root / 'memory', files)
    reading = Cgroup(root, membership).read()
    assert reading is not None
    assert (reading.usage, reading.limit) == (3000, None)


def test_without_a_cgroup_there_is_no_reading(tmp_path: Path) -> None:
    assert Cgroup(tmp_path, tmp_path / 'missing').read() is None


def test_the_limit_within_reach_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, membership = tmp_path / 'cgroup', tmp_path / 'membership'
    membership.write_text('0::/\n')
    cgroup_files(root, {'cgroup.controllers': '', 'memory.current': '950', 'memory.max': '1000', 'memory.stat': ''})

    monkeypatch.setattr('composer_memprof.recorders.host.recorder.Cgroup', lambda: Cgroup(root, membership))
    with pytest.warns(MemprofWarning, match='950 B of the 1000 B at which this job is killed') as caught:
        train(HostRSS())
    assert sum('killed' in str(warning.message) for warning in caught) == 1


def test_the_recorder_works_without_a_trainer() -> None:
    lines: list[str] = []
    with HostMemoryRecorder(lines.append, interval=0.01) as recorder:
        recorder.mark('forward', 0)
        kept = [fresh_memory() for _ in range(16)]
        recorder.mark('backward', 0)
        recorder.end_batch(1)
        time.sleep(0.1)
    assert len(lines) >= 4
    assert json.loads(lines[-1])['charged']['forward'] > 15 * MIB
    assert len(kept) == 16
