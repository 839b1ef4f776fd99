"""``composer-memprof simulate``: any command on a simulated GPU."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.run import list_artifacts
from composer_memprof.analysis.snapshot.loading import load_snapshot
from tests.conftest import entries, run_command_that_simulates, simulated_gpu

# Four layers of 64 MiB, AdamW: parameters, gradients and two states are 1 GiB.
SCRIPT = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
loss = torch.ones(())
while not loss > 1:
    loss = model(torch.randn(64, 4096, device='cuda')).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MIB = 1 << 20


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command_that_simulates('simulate', *arguments)


def result_of(*arguments: str) -> dict[str, Any]:
    ran = simulate('--json', *arguments)
    assert ran.stdout, ran.stderr
    return {**json.loads(ran.stdout), 'stderr': ran.stderr, 'code': ran.returncode}


def test_a_script_that_knows_nothing_of_it_is_recorded_over_its_steps_and_then_ended() -> None:
    Path('train.py').write_text(SCRIPT)
    found = result_of('--gpu', 't4', '--steps', '2', '--', 'python', 'train.py')
    assert (found['code'], found['exit_code'], found['timed_out']) == (0, 0, False)
    (process,) = found['processes']
    assert (process['steps'], process['out_of_memory']) == (2, '')
    (peak,) = process['devices']
    assert 1024 * MIB < peak['allocated'] <= peak['reserved'] < 1700 * MIB
    assert found['total'] == 15828320256 == found['available'] + sum(found['outside'].values())

    folder = Path('simulated/train.t4')
    snapshot = load_snapshot(folder / 'rank0.memory_snapshot.pickle')
    (device,) = report_on(snapshot).devices
    assert device.peak.bytes == pytest.approx(peak['allocated'], abs=4096), 'but for rounding'
    assert device.reserved_peak == peak['reserved']
    sizes = {share.category: share.bytes for share in device.peak.categories}
    assert sizes['parameter'] == sizes['gradient'] == 256 * MIB and sizes['optimizer_state'] >= 512 * MIB
    assert {share.module for share in device.peak.modules} >= {'0', '1', '2', '3'}


def test_whatever_it_leaves_says_that_it_was_simulated() -> None:
    Path('train.py').write_text(SCRIPT)
    shown = simulate('--gpu', 't4', '--steps', '1', '--', 'python', 'train.py')
    assert shown.stdout.startswith('simulated t4: fits')
    folder = Path('simulated/train.t4')
    assert {entry.simulated for entry in entries(folder)} == {'t4'}
    snapshot = load_snapshot(folder / 'rank0.memory_snapshot.pickle')
    assert any('simulated: t4' in note for note in report_on(snapshot).notes)
    assert 'simulated: t4' in (folder / 'rank0.memory_snapshot.html').read_text()
    assert json.loads((folder / 'rank0.memory_snapshot.summary.json').read_text())['meta']['simulated'] == 't4'
    simulate('--gpu', 't4', '--steps', '1', '--', 'python', 'train.py')
    assert Path('simulated/train.t4.2/rank0.memory_snapshot.html').exists(), 'the first run was overwritten'


def test_memory_that_runs_out_does_so_with_torchs_own_error_and_the_scripts_exit_code() -> None:
    Path('train.py').write_text(SCRIPT)
    found = result_of('--memory', '1500MB', '--compute-capability', '8.0', '--', 'python', 'train.py')
    assert found['code'] == found['exit_code'] == 1
    assert 'torch.OutOfMemoryError: CUDA out of memory.' in found['stderr']
    (process,) = found['processes']
    assert 'GPU 0 has a total capacity of 1.40 GiB' in process['out_of_memory']
    report = report_on(load_snapshot(Path(process['snapshot'])))
    assert report.oom is not None and report.oom.requested == 64 * MIB


# Each of a batch takes some hundreds of MiB; a batch beyond the second argument is refused.
BATCHES = """
import sys
import torch
batch = int(sys.argv[1].removeprefix('--batch='))
if batch > int(sys.argv[2]):
    raise SystemExit('too large a batch')
weight = torch.zeros(1, device='cuda', requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
(torch.zeros(batch, 25 << 20, device='cuda') * weight).square().sum().backward()
optimizer.step()
print('done')
"""


def test_the_largest_number_in_a_command_that_fits_is_searched() -> None:
    Path('train.py').write_text(BATCHES)
    device = ('--memory', '1800MB', '--compute-capability', '8.0')
    ran = simulate('--json', *device, '--largest', '4', '--', 'python', 'train.py', '--batch={}', '9')
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.splitlines() == ['composer-memprof: trying 2', 'composer-memprof: trying 3']
    found = json.loads(ran.stdout)
    assert (found['largest'], found['limit']) == (2, '')
    assert [each['fits'] for each in found['tried']] == [True, False]
    allocated = found['tried'][0]['allocated']
    assert allocated < found['available'] < allocated * 3 / 2
    assert [path.name for path in Path().iterdir()] == ['train.py'], 'nothing is recorded'


def test_a_search_says_what_ended_it_if_it_is_not_the_memory() -> None:
    Path('train.py').write_text(BATCHES)
    refused = simulate('--gpu', 't4', '--largest', '2', '--', 'python', 'train.py', '--batch={}', '1')
    (verdict, limit, _, *table) = refused.stdout.splitlines()
    assert verdict == 'simulated t4: the largest number that fits is 1'
    assert limit == 'with 2 the command fails: too large a batch'
    assert [line.split()[-1] for line in table[:2]] == ['yes', 'fails']
    assert refused.returncode == 0
    none = simulate('--memory', '700MB', '--largest', '1', '--', 'python', 'train.py', '--batch={}', '1')
    assert none.returncode == 3 and none.stdout.startswith('simulated 700mb-sm90: not even 1 fits\n')
    nowhere = simulate('--largest', '4', '--', 'python', 'train.py')
    assert nowhere.returncode == 2 and '--largest: the command must contain {}' in nowhere.stderr
    folder = simulate('--largest', '4', '--folder', 'mine', '--', 'python', '{}')
    assert folder.returncode == 2 and '--largest records nothing' in folder.stderr


def test_a_signal_ends_a_search_and_not_only_a_run() -> None:
    simulated_gpu()
    script = 'import time; print(open("ready", "w").write("{}"), flush=True); time.sleep(60)'
    options = ('-m', 'composer_memprof', 'simulate', '--largest', '3', '--')
    search = subprocess.Popen([sys.executable, *options, 'python', '-c', script], stderr=subprocess.PIPE, text=True)
    while not Path('ready').exists():
        time.sleep(0.05)
    search.send_signal(signal.SIGINT)
    _, errors = search.communicate(timeout=60)
    assert search.returncode == 130 and errors.count('trying') == 1


def test_a_script_that_does_not_end_meets_the_time_limit() -> None:
    Path('train.py').write_text(SCRIPT + '\nprint("never")')
    ran = simulate('--steps', '0', '--time-limit', '8', '--', 'python', 'train.py')
    assert 'the command was ended after 8 seconds (--time-limit)' in ran.stderr
    assert 'never' not in ran.stdout and 'at most' in ran.stdout


def test_a_command_without_a_gpu_keeps_its_output_and_its_exit_code() -> None:
    ran = simulate('--', 'python', '-c', 'print("hello"); raise SystemExit(7)')
    assert ran.stdout.splitlines() == ['hello', 'simulated h100-80gb: the command used no GPU memory']
    assert ran.returncode == 7 and not Path('simulated').exists()


def test_what_is_asked_wrongly_is_said_in_a_line() -> None:
    unknown = simulate('--gpu', 'h10', '--', 'python', 'train.py')
    assert "there is no GPU named 'h10'; the nearest is h100-80gb. Choose one of t4, " in unknown.stderr
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (2, 1)
    assert (
        'rank=2 must be at least 0 and less than ranks=2'
        in simulate('--ranks', '2', '--rank', '2', '--', 'python').stderr
    )
    missing = simulate('--', 'no-such-program')
    assert (missing.returncode, len(missing.stderr.splitlines())) == (127, 1)
    assert "--memory='24' must be a size with its unit" in simulate('--memory', '24', '--', 'python').stderr
    assert "--memory='24MB' is too small" in simulate('--memory', '24MB', '--', 'python').stderr
    ranks = simulate('--ranks', '4', '--', 'torchrun', '--nproc-per-node', '8', 'train.py')
    assert (ranks.returncode, len(ranks.stderr.splitlines())) == (2, 1), ranks.stderr


def test_a_checkpoint_that_is_there_is_left_alone() -> None:
    Path('model.pt').write_text('precious')
    Path('train.py').write_text("import torch\nfor name in ('model.pt', 'new.pt'):\n    torch.save([1], name)")
    ran = simulate('--', 'python', 'train.py')
    assert "torch.save left 'model.pt' as it is" in ran.stderr
    assert Path('model.pt').read_text() == 'precious' and Path('new.pt').exists()


TRAINER = """
import torch
from composer import ComposerModel, Trainer
from composer_memprof import MemorySnapshot, FSDPMemTracker
class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, batch):
        return self.layer(batch)
    def loss(self, outputs, batch):
        return outputs.square().mean()
model = Model()
Trainer(model=model, train_dataloader=torch.utils.data.DataLoader(torch.ones(32, 64), batch_size=8), device='gpu',
    optimizers=torch.optim.SGD(model.parameters(), lr=0.1), max_duration='1ep', run_name='run', progress_bar=False,
    callbacks=[MemorySnapshot(), FSDPMemTracker()]).fit()
"""


def test_a_trainer_with_our_callbacks_is_recorded_by_them() -> None:
    Path('train.py').write_text(TRAINER)
    found = result_of('--steps', '0', '--', 'python', 'train.py')
    assert found['exit_code'] == 0, found['stderr']
    (process,) = found['processes']
    assert process['snapshot'] is None and process['steps'] == 4
    listed = [artifact.entry for artifact in list_artifacts([Path('run')], recursive=True)]
    assert {entry.kind for entry in listed} >= {'memory_snapshot', 'fsdp_mem_tracker'}
    assert {entry.simulated for entry in listed} == {'h100-80gb'}
    (document,) = Path('run').rglob('fsdp_mem*.json')
    assert json.loads(document.read_text())['simulated'] == 'h100-80gb'


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_nothing_that_the_command_started_stays_behind() -> None:
    Path('train.py').write_text('import subprocess, sys\nprint(subprocess.Popen(["sleep", "600"]).pid)')
    ran = simulate('--', 'python', 'train.py')
    number = int(ran.stdout.splitlines()[0])
    state = Path(f'/proc/{number}/stat')
    assert not state.exists() or state.read_text().split()[2] == 'Z'


CAUGHT = """
import torch
layer = torch.nn.Linear(64, 64).cuda()
class Optimizer(torch.optim.SGD):
    def step(self, scale):
        assert scale == 0.5
        return super().step()
optimizer = Optimizer(layer.parameters(), lr=0.1)
for size in (1 << 42, 1 << 41, 8):
    try:
        torch.empty(size, dtype=torch.uint8, device='cuda')
    except torch.OutOfMemoryError:
        pass
layer(torch.ones(8, 64, device='cuda')).sum().backward()
optimizer.step(0.5)
"""


def test_errors_that_the_script_catches_are_told_and_folders_are_not_mixed() -> None:
    Path('train.py').write_text(CAUGHT)
    shown = simulate('--folder', 'mine', '--', 'python', 'train.py')
    assert ': fits. ' in shown.stdout, shown.stderr
    assert 'Memory ran out 2 times; the command caught the error' in shown.stdout
    again = simulate('--folder', 'mine', '--', 'python', 'train.py')
    assert again.returncode == 2 and "--folder='mine' must be a new or an empty folder" in again.stderr


def test_the_words_of_a_command_are_no_names_of_folders() -> None:
    script = 'import torch; torch.ones(9).cuda()  # ' + 'x' * 300
    found = result_of('--', 'env', 'TOKEN=s3cret', sys.executable, '-c', script)
    assert found['exit_code'] == 0 and [path.name for path in Path('simulated').iterdir()] == ['command.h100-80gb']


def test_a_process_that_is_killed_is_told() -> None:
    Path('train.py').write_text('import os, torch\ntorch.ones(9).cuda()\nos.kill(os.getpid(), 9)')
    shown = simulate('--', 'python', 'train.py')
    words = ' '.join(shown.stdout.split())
    assert 'the command ended with exit code 137 before it left its figures' in words
    assert shown.returncode == 137 and not Path('simulated').exists()
