"""MemorySnapshot: as Composer's, also on a CPU and in repeated windows."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.core import Time
from composer.loggers import RemoteUploaderDownloader

from composer_memprof import MemorySnapshot
from composer_memprof.recorders.allocations.cpu_allocations import PROFILE_ARGUMENTS, snapshot_of
from composer_memprof.recorders.kineto import KinetoRecorder
from tests.conftest import entries, json_lines, loader, train
from tests.support.processes.python_code import run_python
from tests.support.recordings.memory_snapshots import RUN


def live_peak(snapshot: dict[str, Any]) -> int:
    """The largest sum of live bytes, computed event by event."""
    live = peak = 0
    seen: dict[int, int] = {}
    for event in snapshot['device_traces'][0]:
        if event['action'] == 'alloc':
            live += event['size']
            seen[event['addr']] = event['size']
        elif event['action'] == 'free_completed' and event['addr'] in seen:
            live -= seen.pop(event['addr'])
        peak = max(peak, live)
    return peak


def record(function: Any) -> tuple[dict[str, Any], KinetoRecorder]:
    with KinetoRecorder(**PROFILE_ARGUMENTS) as recorder:
        function()
    assert recorder.result is not None
    return snapshot_of(recorder.result), recorder


def allocate() -> None:
    kept = [torch.empty(1000, dtype=torch.float32) for _ in range(3)]
    torch.empty(5000, dtype=torch.float32)
    kept.append(torch.empty(10, dtype=torch.float32))


def test_on_a_cpu_each_allocation_has_its_size_and_the_callers_frame() -> None:
    snapshot, _ = record(allocate)
    sizes = [event['size'] for event in snapshot['device_traces'][0] if event['action'] == 'alloc']
    assert sizes.count(4000) == 3
    assert sizes.count(20000) == 1
    assert live_peak(snapshot) == 3 * 4000 + 20000
    frames = next(e['frames'] for e in snapshot['device_traces'][0] if e['size'] == 20000)
    assert frames[0]['name'] == 'allocate'
    assert frames[0]['filename'].endswith(Path(__file__).name)
    source = Path(__file__).read_text().splitlines()
    assert 'torch.empty(5000' in source[frames[0]['line'] - 1]


def test_its_peak_is_the_profilers_own_running_total() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))

    def step() -> None:
        model(torch.randn(32, 64)).sum().backward()

    snapshot, recorder = record(step)
    assert recorder.result is not None
    from torch._C._profiler import _EventType

    totals, pending = [], list(recorder.result.events())
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag == _EventType.Allocation:
            totals.append((event.start_time_ns, event.extra_fields))
    totals.sort(key=lambda total: total[0])
    before = totals[0][1].total_allocated - totals[0][1].alloc_size
    assert live_peak(snapshot) == max(fields.total_allocated for _, fields in totals) - before


def test_what_is_live_at_the_end_is_in_the_segments() -> None:
    kept: list[torch.Tensor] = []
    snapshot, _ = record(lambda: kept.append(torch.empty(777)))
    (segment,) = [segment for segment in snapshot['segments'] if segment['total_size'] == 777 * 4]
    assert segment['address'] == kept[0].untyped_storage().data_ptr()
    assert segment['blocks'][0]['state'] == 'active_allocated'


def test_the_page_can_be_left_out() -> None:
    train(MemorySnapshot(page=False))
    assert {entry.kind for entry in entries(Path('test-run'))} == {'memory_snapshot', 'memory_snapshot.summary'}
    assert not list(RUN.glob('*.html'))
    with pytest.raises(ValueError, match="page must be true or false, not 'no'"):
        MemorySnapshot(page='no')  # type: ignore[arg-type]


def test_a_window_leaves_a_protocol_4_pickle_of_plain_values_and_a_page() -> None:
    train(MemorySnapshot())
    content = (RUN / 'rank0.4.memory_snapshot.pickle').read_bytes()
    assert content[:2] == b'\x80\x04'

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise AssertionError(f'{module}.{name} in the pickle')

    snapshot = Plain(io.BytesIO(content)).load()
    assert set(snapshot) >= {'segments', 'device_traces'}
    assert len(snapshot['device_traces'][0]) > 50
    assert '<script' in (RUN / 'rank0.4.memory_snapshot.html').read_text()


def test_torchs_own_tools_read_it() -> None:
    from torch.cuda._memory_viz import segsum, trace

    train(MemorySnapshot(compress=True))
    snapshot = pickle.loads(gzip.decompress((RUN / 'rank0.4.memory_snapshot.pickle.gz').read_bytes()))
    assert 'segments' in segsum(snapshot)
    assert 'TOTAL MEM' in trace(snapshot)


@pytest.mark.parametrize('interval', ['100sp', Time(100, 'sp')])
def test_an_interval_in_samples_with_batches_of_32_gives_its_snapshot(interval: Any) -> None:
    train(MemorySnapshot(interval=interval), batches=8, train_dataloader=loader(8, batch_size=32))
    assert [entry.batch for entry in entries(RUN, 'memory_snapshot')] == [5]


def test_so_does_a_run_resumed_at_batch_500_under_the_same_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        train(MemorySnapshot(), batches=250, max_duration='500ba', save_folder='checkpoints', save_interval='500ba')
        train(
            MemorySnapshot(interval='100sp'),
            batches=250,
            max_duration='520ba',
            load_path='checkpoints/latest-rank0.pt',
        )
    assert [entry.batch for entry in entries(RUN, 'memory_snapshot')] == [4, 514]


def test_windows_repeat_by_schedule() -> None:
    train(MemorySnapshot(schedule={'active': '1ba', 'every': '4ba'}), batches=12)
    assert [entry.batch for entry in entries(RUN, 'memory_snapshot')] == [1, 5, 9]


@pytest.mark.slow
def test_it_goes_where_composers_logger_takes_it_under_a_name_not_used_before(
    s3: Any, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('S3_ENDPOINT_URL', s3_endpoint)
    for _ in range(2):
        train(
            MemorySnapshot(remote_file_name='/{run_name}/shelf', folder='local'),
            loggers=[RemoteUploaderDownloader('s3://runs')],
            batches=6,
        )
        assert {entry.status for entry in entries(Path('local'))} == {'uploaded'}
        lines = json_lines(next(Path('local').glob('*.manifest.jsonl')))
        saved = [line['remote'] for line in lines if line['status'] == 'saved']
        assert saved and all(address.startswith('s3://runs/') for address in saved), 'push could not find them'
        shutil.rmtree('local')  # as on a fresh node
    assert [name for name in sorted(s3.find('runs')) if name.endswith('.pickle')] == [
        'runs/test-run/shelf/rank0.4.memory_snapshot.2.pickle',
        'runs/test-run/shelf/rank0.4.memory_snapshot.pickle',
    ]


def test_without_anyone_who_takes_files_they_stay_saved() -> None:
    train(MemorySnapshot())
    assert [(entry.status, entry.remote) for entry in entries(RUN, 'memory_snapshot')] == [('saved', None)]


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'skip_batches': -1}, ['skip_batches must be finite and not negative, not -1']),
        ({'interval': '-3ba'}, ["interval must be finite and not negative, not '-3ba'"]),
        ({'interval': 0}, ['interval must be longer than 0, not 0']),
        ({'interval': '3bas'}, ["interval='3bas'", "'ba'"]),
        ({'max_entries': 0}, ['max_entries must be', 'not 0']),
        ({'stacks': 'cpp'}, ["stacks='cpp'", 'python']),
        ({'context': 'none'}, ["context='none'", 'alloc']),
        ({'skip_batches': 5, 'schedule': {'active': '1ba'}}, ['schedule', 'skip_batches=5']),
    ],
)
def test_a_mistake_is_refused_at_construction(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        MemorySnapshot(**arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_stamp_of_a_file_is_the_end_of_its_window() -> None:
    callback = MemorySnapshot(filename='e{epoch}-b{batch}-s{sample}')
    train(callback)
    assert (RUN / 'e0-b4-s32.pickle').exists()


IMPORTS = """
from composer_memprof import MemorySnapshot
from tests.conftest import make_trainer

trainer = make_trainer(MemorySnapshot(skip_batches=0, interval='1ba', folder='snapshots'), max_duration='1ba')

def imports(*_):
    import pydoc, sqlite3, sympy.stats, wave, xml.dom.minidom

trainer.state.model.register_forward_pre_hook(imports)
trainer.fit()
trainer.close()
"""


def test_a_module_that_is_imported_in_a_window_loses_no_snapshot() -> None:
    # The code of an imported module is freed, and torch's profiler goes on pointing at its names.
    run_python(f'import os; os.chdir({os.getcwd()!r}){IMPORTS}')
    assert 'memory_snapshot' in {entry.kind for entry in entries(Path('snapshots')) if entry.status == 'saved'}
