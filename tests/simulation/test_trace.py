"""``simulate --trace``: what each stream did in the step that was timed."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.simulation.step_time import LABELS
from tests.support.processes.simulated_runs import result_of, simulate

pytestmark = pytest.mark.slow

SHARDED = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group('nccl')
with torch.device('meta'):
    layers = [torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU()) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(torch.bfloat16)
mesh = init_device_mesh('cuda', (8,))
for layer in layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device='cuda')
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(9):
    model(torch.zeros(8192, 4096, dtype=torch.bfloat16, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
"""
COPYING = """
import torch
model = torch.nn.Linear(4096, 64, device='cuda')
optimizer = torch.optim.SGD(model.parameters())
for _ in range(9):
    inputs = torch.zeros(8192, 4096).pin_memory().to('cuda', non_blocking=True)
    model(inputs).sum().backward()
    optimizer.step()
"""


def rows_of(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The events of each row, in the order of their begins."""
    events = trace['traceEvents']
    names = {(event['pid'], event['tid']): event['args']['name'] for event in events if event['name'] == 'thread_name'}
    rows = defaultdict(list)
    for event in sorted((event for event in events if event['ph'] == 'X'), key=lambda event: event['ts']):
        rows[names[event['pid'], event['tid']]].append(event)
    return rows


def end(event: dict[str, Any]) -> float:
    return float(event['ts'] + event['dur'])


def test_a_trace_has_each_stream_in_a_row_and_adds_up_to_the_times_of_the_clocks() -> None:
    Path('train.py').write_text(SHARDED)
    arguments = ('--gpu', 'a100-80gb', '--ranks', '8', '--trace', 'step.json')
    found = result_of(*arguments, '--', 'python', 'train.py', fresh=True)
    assert found['code'] == 0 and found['processes'][0]['trace'] == 'step.json' and 'step.json' in found['stderr']
    trace = json.loads(Path('step.json').read_text())
    assert (trace['simulated'], trace['distributedInfo']['world_size']) == ('a100-80gb', 8)
    rows = rows_of(trace)
    assert all('simulated' in name for name in rows)

    streams = {name: events for name, events in rows.items() if 'stream' in events[0]['args']}
    assert len(streams) >= 3
    for events in streams.values():
        assert all(end(event) <= after['ts'] + 1e-3 for event, after in zip(events, events[1:]))
    time = found['time']
    sums: Counter[str] = Counter()
    for event in streams['simulated stream 7 (default)']:
        sums[event['args']['kind']] += event['dur'] / 1e6
    for name in ('matrix_products', 'other_operators', 'optimizer', 'copies'):
        kind = LABELS[name].removeprefix('the ')
        assert sums[kind] == pytest.approx(time['shares'][name] * time['step_seconds'], abs=1e-6), name
    assert sum(event['args'].get('launches', 0) for event in rows['simulated host']) >= 50

    (collectives,) = (events for name, events in streams.items() if 'collectives' in name)
    assert Counter(event['name'] for event in collectives) == {
        'ncclDevKernel_all_gather': 2 * 4,  # in forward and in backward
        'ncclDevKernel_reduce_scatter': 4,
    }
    compute = [event for event in rows['simulated stream 7 (default)'] if event['args']['kind'] == 'matrix products']
    hidden = [
        gather
        for gather in collectives
        if any(event['ts'] < end(gather) and gather['ts'] < end(event) for event in compute)
    ]
    assert len(hidden) >= 4, 'FSDP gathers the next layer while the one before it computes'

    modules = {event['name']: event for event in rows['simulated: modules, as their kernels run']}
    assert {'ProfilerStep#1', 'model', '0', '3.0', 'optimizer'} <= set(modules)
    linear = modules['1.0']
    assert [event['name'] for event in compute if linear['ts'] <= event['ts'] and end(event) <= end(linear)] == [
        'aten::addmm'
    ]
    waits = [event for event in rows['simulated host'] if event['name'] == 'the host waits for the device']
    assert len(waits) == 1, 'for the step before'


def test_copies_are_in_the_trace_and_a_name_that_ends_in_gz_is_compressed() -> None:
    Path('train.py').write_text(COPYING)
    Path('step.json.gz').write_text('an earlier trace')
    ran = simulate('--gpu', 'a100-80gb', '--trace', 'step.json.gz', '--', 'python', 'train.py')
    assert ran.returncode == 0, ran.stderr
    events = json.loads(gzip.decompress(Path('step.json.gz').read_bytes()))['traceEvents']
    (copy,) = (event for event in events if event.get('cat') == 'gpu_memcpy' and event['dur'] > 1000)
    assert copy['name'] == 'Memcpy HtoD' and copy['dur'] == pytest.approx(4 * 8192 * 4096 / 25e9 * 1e6, rel=0.01)
    launched = {event['id'] for event in events if event['ph'] == 's'}
    assert launched == {event['id'] for event in events if event['ph'] == 'f'} and len(launched) > 5
    assert sorted(path.name for path in Path().iterdir()) == ['simulated', 'step.json.gz', 'train.py']


def test_where_no_step_was_timed_a_line_says_so_and_bad_usage_is_one_line() -> None:
    Path('train.py').write_text('import torch\ntorch.zeros(9, device="cuda")\n')
    ran = simulate('--gpu', 't4', '--trace', 'step.json', '--', 'python', 'train.py')
    assert 'no step was timed, so that there is no trace' in ran.stderr and not Path('step.json').exists()
    for arguments, words in (
        (('--trace', 'nowhere/step.json'), 'must be a file in a folder that exists'),
        (('--trace', 'step.json', '--steps', '0'), 'takes no --steps 0'),
        (('--trace', 'step.json', '--largest', '2'), 'no --trace'),
    ):
        ran = simulate('--gpu', 't4', *arguments, '--', 'python', 'train.py')
        assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1) and words in ran.stderr
