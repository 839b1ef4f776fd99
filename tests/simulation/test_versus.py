"""``composer-memprof simulate --versus``: a simulated run against a recording of the same command."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes.simulated_runs import result_of, simulate

#: Records itself, as scripts do on a real GPU, and writes over the recording that is there.
RECORDS = """
import torch
torch.cuda.memory._record_memory_history()
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(3)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.ones(BATCH, 512, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.memory._dump_snapshot('recorded.pickle')
"""


def test_a_simulated_run_is_compared_with_a_recording_event_by_event() -> None:
    Path('train.py').write_text(RECORDS.replace('BATCH', '64'))
    assert simulate('--', 'python', 'train.py').returncode == 0
    recorded = Path('recorded.pickle').read_bytes()
    same = result_of('--versus', 'recorded.pickle', '--', 'python', 'train.py')['versus']
    assert (same['same'], same['real'], same['simulated']) == (same['events'], None, None) and same['events'] > 50
    assert same['allocated'] == same['simulated_allocated'] and same['reserved'] == same['simulated_reserved']
    assert Path('recorded.pickle').read_bytes() == recorded, 'the recording is left alone'

    Path('train.py').write_text(RECORDS.replace('BATCH', '96'))
    other = simulate('--versus', 'recorded.pickle', '--', 'python', 'train.py')
    words = ' '.join(other.stdout.split())
    assert f'of {same["events"]} allocations and frees are the same' in words, other.stdout
    line = 1 + RECORDS.splitlines().index("    model(torch.ones(BATCH, 512, device='cuda')).sum().backward()")
    assert f'Then the recording has alloc of 131,072 B by train.py:{line} <module>' in words
    assert f'Then the simulation has alloc of 196,608 B by train.py:{line} <module>' in words
    assert other.returncode == 0, 'a comparison changes no verdict'


#: The snapshot is dumped at the peak, so that it has the sizes to which the allocator rounded the blocks.
ENDS_AT_ITS_PEAK = """
import torch
torch.cuda.memory._record_memory_history()
kept = [torch.ones(1001, 1001, device='cuda') for _ in range(5)]
torch.cuda.memory._dump_snapshot('recorded.pickle')
del kept
"""


def test_peaks_are_compared_as_they_were_requested() -> None:
    Path('train.py').write_text(ENDS_AT_ITS_PEAK)
    assert simulate('--', 'python', 'train.py').returncode == 2, 'no optimizer stepped'
    same = result_of('--versus', 'recorded.pickle', '--', 'python', 'train.py')['versus']
    assert same['allocated'] == same['simulated_allocated'] == 5 * 1001 * 1001 * 4


def test_a_file_that_is_no_recording_is_refused_before_the_command_runs() -> None:
    Path('train.py').write_text('open("ran", "w")')
    Path('empty.pickle').write_text('no pickle')
    for name in ('missing.pickle', 'empty.pickle'):
        refused = simulate('--versus', name, '--', 'python', 'train.py')
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
        assert f"--versus='{name}' cannot be read" in refused.stderr
    assert not Path('ran').exists()
