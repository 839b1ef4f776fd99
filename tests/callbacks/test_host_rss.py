"""HostRSS: exact growth by phase, one warning for a leak, none for a warm-up."""

from __future__ import annotations

import gzip
import json
import mmap
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from composer.core import Callback, State
from composer.loggers import InMemoryLogger, Logger
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_memprof import HostRSS
from composer_memprof.analysis.run_report.host_file import read_host_file, read_host_summary
from composer_memprof.analysis.typed_json import FormatError
from composer_memprof.cgroup import Cgroup
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.host.processes import ProcessReader, child_pids, process_details
from composer_memprof.recorders.host.recorder import HostMemoryRecorder, WriteError
from composer_memprof.recorders.host.sampler import Sampler
from composer_memprof.recorders.host.summary import HostSample, HostTally
from composer_memprof.recorders.host.trend import Series, estimate_trend
from tests.conftest import Noise, child_environment, entries, json_lines, loader, train

RECORD = Path('test-run/memprof/rank0.0.host_rss.jsonl')
MIB = 1 << 20


def fresh_memory() -> mmap.mmap:
    """1 MiB of new memory, never taken from memory that was freed before."""
    memory = mmap.mmap(-1, MIB)
    memory.write(b'x' * MIB)
    return memory


class Leaky(Noise):
    """One DataLoader worker keeps 1 MiB more with each sample; -1: no worker does."""

    def __init__(self, samples: int, leaking_worker: int) -> None:
        super().__init__(samples)
        self.leaking_worker = leaking_worker
        self.kept: list[mmap.mmap] = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        if info is not None and info.id == self.leaking_worker:
            self.kept.append(fresh_memory())
        time.sleep(0.002)
        return super().__getitem__(index)


class LeakyPhase(Callback):
    """Keeps 1 MiB more with each batch, in the phase of an event."""

    def __init__(self, event: str) -> None:
        self.kept: list[mmap.mmap] = []
        setattr(self, event, self._leak)

    def _leak(self, state: State, logger: Logger) -> None:
        self.kept.append(fresh_memory())


def leak_warnings(*callbacks: Any, **more: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        train(*callbacks, **more)
    return [str(warning.message) for warning in caught if 'host memory grows' in str(warning.message)]


def leaky_loader(leaking_worker: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Leaky(200, leaking_worker), batch_size=1, num_workers=2)


# -- leaks --------------------------------------------------------------------------------------------------------


def test_a_leak_in_a_dataloader_worker_is_found_and_the_worker_named() -> None:
    (message,) = leak_warnings(HostRSS(), train_dataloader=leaky_loader(1))
    assert 'DataLoader worker 1 (pid ' in message
    # This worker loads every second batch, so it grows by half a MiB per batch.
    rate = float(message.split(', ')[1].split()[0])
    assert 300 < rate < 700
    assert 'KiB a batch' in message
    summary = json_lines(RECORD)[-1]
    assert summary['event'] == 'summary'
    assert summary['suspect']['name'].startswith('DataLoader worker 1')


def test_the_same_run_without_the_leak_is_silent() -> None:
    assert leak_warnings(HostRSS(), train_dataloader=leaky_loader(-1)) == []


@pytest.mark.parametrize(('event', 'phase'), [('after_dataloader', 'between phases'), ('before_forward', 'forward')])
def test_a_leak_in_the_training_process_is_charged_to_its_phase(event: str, phase: str) -> None:
    # This callback runs after HostRSS, so its memory belongs to the phase that the event begins.
    (message,) = leak_warnings(HostRSS(), LeakyPhase(event), batches=80)
    assert f"the training process, most of it in phase '{phase}'" in message
    charged = json_lines(RECORD)[-1]['charged']
    assert charged[phase] > 70 * MIB
    assert sum(charged.values()) == pytest.approx(80 * MIB, rel=0.5)


def test_a_training_with_a_profiler_on_board_is_no_leak() -> None:
    from composer_memprof import MemorySnapshot, TorchProfiler

    assert leak_warnings(HostRSS(), MemorySnapshot(), TorchProfiler(), batches=200) == []


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


# -- readings -----------------------------------------------------------------------------------------------------


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


# -- the record ---------------------------------------------------------------------------------------------------


def test_each_sample_is_a_line_with_its_batch_and_phase_and_is_logged() -> None:
    logger = InMemoryLogger()
    train(HostRSS(interval=0.02), loggers=[logger], batches=60)
    records = json_lines(RECORD)
    samples = [record for record in records if record['event'] == 'sample']
    assert len(samples) >= 3
    assert all(sample['rss'] > 0 and sample['vms'] > sample['shared'] > 0 for sample in samples)
    assert {'uss', 'pss', 'available', 'open_files', 'threads'} <= set(samples[1])
    assert samples[-1]['batch'] == 60
    assert records[-1]['event'] == 'summary'
    logged = {name for name in logger.data if name.startswith('host_rss/')}
    assert {'host_rss/rss', 'host_rss/vms', 'host_rss/shared', 'host_rss/children_rss'} <= logged


def test_evaluation_and_checkpoints_are_phases_too() -> None:
    train(
        HostRSS(),
        LeakyPhase('eval_batch_start'),
        batches=10,
        eval_dataloader=loader(2),
        eval_interval='2ba',
        save_folder='checkpoints',
        save_interval='5ba',
    )
    assert json_lines(RECORD)[-1]['charged']['eval'] > 8 * MIB


def test_workers_and_other_children_are_told_apart() -> None:
    other = subprocess.Popen(['sleep', '60'])
    try:
        train(HostRSS(interval=0.02), train_dataloader=leaky_loader(-1))
    finally:
        other.kill()
        other.wait()
    children = [child for record in json_lines(RECORD) for child in record.get('children', [])]
    assert {child['worker'] for child in children if 'worker' in child} == {0, 1}
    assert any(child.get('name') == 'sleep' for child in children)


def test_the_record_survives_a_kill() -> None:
    code = (
        'import os, signal\n'
        'from composer.core import Callback\n'
        'from composer_memprof import HostRSS\n'
        'from tests.conftest import train\n'
        'class Kill(Callback):\n'
        '    def batch_end(self, state, logger):\n'
        '        if state.timestamp.batch == 40: os.kill(os.getpid(), signal.SIGKILL)\n'
        'train(HostRSS(interval=0.005), Kill(), batches=60)\n'
    )
    killed = subprocess.run([sys.executable, '-c', code], env=child_environment(), capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    assert len(json_lines(RECORD)) >= 2
    assert [(entry.status, entry.bytes) for entry in entries(Path('test-run'))] == [('open', None)]


def test_each_window_has_a_record_of_its_own_compressed_if_asked() -> None:
    train(HostRSS(schedule={'active': '2ba', 'every': '5ba'}, compress=True), batches=10)
    saved = [entry.path for entry in entries(Path('test-run')) if entry.status == 'saved']
    names = ('jsonl.gz', 'summary.json')
    assert saved == [f'rank0.{batch}.host_rss.{name}' for batch in (0, 5) for name in names]
    lines = gzip.decompress((RECORD.parent / saved[2]).read_bytes()).splitlines()
    assert json.loads(lines[0])['batch'] == 5


@pytest.mark.parametrize('interval', [0, -1, 'x', None, True, float('nan'), float('inf')])
def test_an_interval_that_can_not_be_is_refused(interval: Any) -> None:
    with pytest.raises(ValueError, match=r'interval must be 0\.001 to 86400 seconds, not '):
        HostRSS(interval=interval)


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


# -- the summary --------------------------------------------------------------------------------------------------


def test_the_summary_has_the_records_peaks_growth_and_a_hundred_samples() -> None:
    train(HostRSS(interval=0.001), LeakyPhase('before_forward'), batches=80)
    records = json_lines(RECORD)
    samples = [record for record in records if record['event'] == 'sample']
    path = RECORD.with_suffix('.summary.json')
    summary = read_host_summary(path)
    assert path.stat().st_size < 10_000
    assert summary.samples == len(samples) and len(summary.over_time.rss) <= 100
    totals = [sample['rss'] + sample['children_rss'] for sample in samples]
    assert summary.rss_peak == max(totals)
    assert max(map(sum, zip(summary.over_time.rss, summary.over_time.children_rss))) == max(totals)
    assert summary.charged == records[-1]['charged'] and summary.charged['forward'] > 70 * MIB
    assert summary.growth is not None and summary.growth.clear
    assert summary.suspect is not None and summary.suspect.name == records[-1]['suspect']['name']
    assert read_host_file(RECORD) == summary, 'the record says the same'
    document = json.loads(path.read_text())
    assert (document['rank'], document['batch'], document['stage'], document['version']) == (0, 80, 'train', 1)


@given(sizes=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=500), most=st.sampled_from([2, 4, 100]))
def test_a_recording_of_any_length_keeps_the_largest_sample_of_each_span(sizes: list[int], most: int) -> None:
    tally = HostTally(most)
    for number, size in enumerate(sizes):
        tally.add(HostSample(100.0 + number, number, 'forward', size))
    summary = tally.summary()
    kept = summary.over_time
    assert summary.samples == len(sizes) and len(kept.rss) <= most
    assert max(kept.rss) == summary.rss_peak == max(sizes)
    assert kept.batch == sorted(kept.batch) == [int(second) for second in kept.seconds]
    spans = [size for size in (2**power for power in range(10)) if -(-len(sizes) // size) == len(kept.rss)]
    assert any(kept.rss == [max(sizes[at : at + span]) for at in range(0, len(sizes), span)] for span in spans)


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        ({'rss_peak': 'much'}, 'rss_peak must be a whole number'),
        ({'over_time': {'seconds': [1.0], 'rss': []}}, 'its columns differ in length'),
        ({'over_time': None}, 'it must be a mapping|over_time'),
    ],
)
def test_a_summary_that_is_none_is_refused(change: dict[str, Any], words: str) -> None:
    good = HostTally().summary().as_dict()
    Path('x.json').write_text(json.dumps({**good, **change}))
    with pytest.raises(FormatError, match=words):
        read_host_summary(Path('x.json'))


# -- the sampling thread ------------------------------------------------------------------------------------------


def test_a_sampler_calls_at_its_interval_until_it_is_stopped() -> None:
    called: list[float] = []
    sampler = Sampler('test-sampler', 0.01, lambda: called.append(time.monotonic()))
    sampler.start()
    assert any(thread.name == 'test-sampler' and thread.daemon for thread in threading.enumerate())
    time.sleep(0.2)
    assert sampler.stop() and sampler.error is None
    count = len(called)
    assert 3 <= count <= 20
    assert all(later - earlier >= 0.009 for earlier, later in zip(called, called[1:]))
    time.sleep(0.05)
    assert len(called) == count
    assert not any(thread.name == 'test-sampler' for thread in threading.enumerate())


def test_the_first_error_of_a_sampler_ends_it_and_is_kept() -> None:
    called: list[int] = []

    def fail() -> None:
        called.append(len(called))
        raise OSError(f'error {len(called)}')

    sampler = Sampler('test-sampler', 0.001, fail)
    sampler.start()
    time.sleep(0.1)
    assert called == [0]
    assert sampler.stop() and str(sampler.error) == 'error 1'


def test_stopping_a_sampler_waits_no_longer_than_its_timeout_and_may_be_repeated() -> None:
    release = threading.Event()
    sampler = Sampler('test-sampler', 0.001, release.wait)
    sampler.start()
    time.sleep(0.05)
    began = time.monotonic()
    assert sampler.stop(timeout=0.05) is False
    assert time.monotonic() - began < 1
    assert sampler.stop(timeout=0) is False
    release.set()
    assert sampler.stop() is True
    with pytest.raises(RuntimeError, match='only once'):
        sampler.start()


def test_a_sampler_with_a_long_interval_stops_at_once() -> None:
    sampler = Sampler('test-sampler', 3600, lambda: None)
    sampler.start()
    began = time.monotonic()
    assert sampler.stop()
    assert time.monotonic() - began < 1


def test_a_record_that_cannot_be_written_ends_the_sampling_and_other_errors_do_not() -> None:
    lines: list[str] = []
    recorder = HostMemoryRecorder(lines.append, interval=0.005)
    recorder.start()

    def unreadable(line: str) -> None:
        raise ValueError('a process ended')

    recorder._write = unreadable
    time.sleep(0.05)
    assert recorder.error is None

    def full(line: str) -> None:
        raise OSError('no space left')

    recorder._write = full
    time.sleep(0.05)
    assert isinstance(recorder.error, WriteError) and 'no space left' in str(recorder.error)
    recorder._write = lines.append
    recorder.stop()
    assert json.loads(lines[-1])['event'] == 'summary'
