"""HostRSS: exact growth by phase, one warning for a leak, and a record that survives a kill."""

from __future__ import annotations

import gzip
import json
import mmap
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Callback, State
from composer.loggers import InMemoryLogger, Logger
from hypothesis import given
from hypothesis import strategies as st

from composer_memprof import HostRSS
from composer_memprof.analysis.run_report.host_file import read_host_file, read_host_summary
from composer_memprof.analysis.typed_json import FormatError
from composer_memprof.recorders.host.recorder import HostMemoryRecorder, WriteError
from composer_memprof.recorders.host.summary import HostSample, HostTally
from tests.conftest import Noise, child_environment, entries, json_lines, loader, train
from tests.support.callbacks.host_memory import MIB, fresh_memory
from tests.support.processes import warm_python

RECORD = Path('test-run/memprof/rank0.0.host_rss.jsonl')


class Leaky(Noise):
    """DataLoader workers of these numbers keep 1 MiB more with each sample."""

    def __init__(self, samples: int, *leaking: int) -> None:
        super().__init__(samples)
        self.leaking = leaking
        self.kept: list[mmap.mmap] = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        if info is not None and info.id in self.leaking:
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


def leaky_loader(*leaking: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Leaky(200, *leaking), batch_size=1, num_workers=2)


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


@pytest.mark.parametrize('persistent', [True, False])
def test_workers_that_leak_are_summed(persistent: bool) -> None:
    data = torch.utils.data.DataLoader(Leaky(120, 0, 1), batch_size=1, num_workers=2, persistent_workers=persistent)
    leak_warnings(HostRSS(), train_dataloader=data, max_duration='2ep')
    suspect = json_lines(RECORD)[-1]['suspect']
    assert suspect['name'] == '2 DataLoader workers together'
    assert suspect['growth']['per_batch'] == pytest.approx(MIB, rel=0.2)


def test_the_same_run_without_the_leak_is_silent() -> None:
    assert leak_warnings(HostRSS(), train_dataloader=leaky_loader()) == []


@pytest.mark.parametrize(('event', 'phase'), [('after_dataloader', 'between phases'), ('before_forward', 'forward')])
def test_a_leak_in_the_training_process_is_charged_to_its_phase(event: str, phase: str) -> None:
    # This callback runs after HostRSS, so its memory belongs to the phase that the event begins.
    (message,) = leak_warnings(HostRSS(), LeakyPhase(event), batches=80)
    assert f"the training process, most of its new pages in phase '{phase}'" in message
    charged = json_lines(RECORD)[-1]['charged']
    assert charged[phase] > 70 * MIB
    assert sum(charged.values()) == pytest.approx(80 * MIB, rel=0.5)


def test_a_training_with_a_profiler_on_board_is_no_leak() -> None:
    from composer_memprof import MemorySnapshot, TorchProfiler

    assert leak_warnings(HostRSS(), MemorySnapshot(), TorchProfiler(), batches=200) == []


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
    killed = warm_python.run([sys.executable, '-c', code], env=child_environment(), capture_output=True)
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
