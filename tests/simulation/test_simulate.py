"""``composer-memprof simulate``: what a command on a simulated GPU is recorded to do, and how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.run import list_artifacts
from composer_memprof.analysis.snapshot.loading import load_snapshot
from tests.conftest import entries, simulated_gpu, wait_for
from tests.support.processes.simulated_runs import MIB, SCRIPT, result_of, simulate


@pytest.mark.slow
def test_a_script_that_knows_nothing_of_it_is_recorded_over_its_steps_and_then_ended() -> None:
    Path('train.py').write_text(SCRIPT)
    found = result_of('--gpu', 't4', '--steps', '2', '--', 'python', 'train.py', fresh=True)
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
    assert sizes['parameter'] == 256 * MIB and sizes['optimizer_state'] >= 512 * MIB
    assert sizes['gradient'] == pytest.approx(256 * MIB, abs=512), 'and the loss'
    assert {share.module for share in device.peak.modules} >= {'0', '1', '2', '3'}


@pytest.mark.slow
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


COMPILED = """
import torch
from torch._dynamo.utils import counters
layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
layer.compile(backend='eager')
for _ in range(3):
    layer(torch.ones(8, 64, device='cuda')).sum().backward()
    optimizer.step()
print(counters['frames'], counters['graph_break'])
"""


def test_what_is_recorded_does_not_get_into_a_compiled_model() -> None:
    Path('train.py').write_text(COMPILED)
    assert simulate('--', 'python', 'train.py').stdout.startswith("Counter({'total': 1, 'ok': 1}) Counter()\n")


@pytest.mark.slow
def test_a_script_that_does_not_end_meets_the_time_limit() -> None:
    Path('train.py').write_text(SCRIPT + '\nprint("never")')
    ran = simulate('--steps', '0', '--time-limit', '3', '--', 'python', 'train.py')
    assert 'the command was ended after 3 seconds (--time-limit)' in ran.stderr
    assert 'never' not in ran.stdout and 'at most' in ran.stdout


def test_a_command_without_a_gpu_keeps_its_output_and_its_exit_code() -> None:
    ran = simulate('--', 'python', '-c', 'print("hello"); raise SystemExit(7)', fresh=True)
    assert ran.stdout.splitlines() == ['hello', 'simulated h100-80gb: not seen: the command failed with exit code 7']
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
    documents = list(Path('run').rglob('fsdp_mem*.json'))
    assert len(documents) == 2, 'the file and its summary'
    assert {json.loads(document.read_text())['simulated'] for document in documents} == {'h100-80gb'}


RUNS_OUT = """
import torch
class Fills(torch.nn.Linear):
    calls = 0
    def forward(self, batch):
        self.calls += 1
        torch.empty(1 << (40 if self.calls == 3 else 4), device='cuda')
        return super().forward(batch)
""" + TRAINER.replace('torch.nn.Linear(', 'Fills(').replace('MemorySnapshot()', 'MemorySnapshot(on_oom=True)')


def test_memory_that_runs_out_leaves_what_a_gpu_would() -> None:
    Path('train.py').write_text(RUNS_OUT)
    found = result_of('--gpu', 'a100-40gb', '--', 'python', 'train.py')
    (process,) = found['processes']
    assert process['ran_out'] == {'batch': 2, 'phase': 'forward', 'module': 'layer'}
    (summary,) = Path('run').rglob('*.oom.summary.json')
    oom = json.loads(summary.read_text())['oom']
    assert (oom['batch'], oom['phase'], oom['requested'], oom['device']) == (2, 'forward', 4 << 40, 0)
    message = 'CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which'
    assert process['out_of_memory'].startswith(message)
    stem = str(summary).removesuffix('.summary.json')
    page = Path(f'{stem}.html').read_text()
    assert 'Out of memory' in page and 'simulated: a100-40gb' in page
    report = report_on(load_snapshot(Path(f'{stem}.pickle')))
    assert {share.module for share in report.devices[0].at_failure.modules} >= {'layer'}


def is_running(number: int) -> bool:
    state = Path(f'/proc/{number}/stat')
    return state.exists() and state.read_text().split()[2] != 'Z'


def test_nothing_that_the_command_started_stays_behind() -> None:
    Path('train.py').write_text('import subprocess, sys\nprint(subprocess.Popen(["sleep", "600"]).pid)')
    ran = simulate('--', 'python', 'train.py')
    assert not is_running(int(ran.stdout.splitlines()[0]))


SLEEPS = """
import os, subprocess, time
child = subprocess.Popen(['sleep', '600'])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def test_nothing_stays_behind_where_the_simulation_itself_is_killed() -> None:
    Path('train.py').write_text(SLEEPS)
    simulated_gpu()
    command = [sys.executable, '-m', 'composer_memprof', 'simulate', '--', 'python', 'train.py']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        numbers = [int(word) for word in started.stdout.readline().split()]
        assert len(numbers) == 2
        started.kill()
        wait_for(lambda: not any(is_running(number) for number in numbers), 10)


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


WITH_WORKERS = """
import torch
class Data(torch.utils.data.Dataset):
    kept = torch.ones(400 << 18)
    own = None
    def __len__(self):
        return 64
    def __getitem__(self, index):
        self.own = torch.ones(50 << 18)
        return torch.ones(8)
if __name__ == '__main__':
    layer = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2):
        layer(batch.cuda()).sum().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_workers_that_load_data_are_counted_with_what_is_theirs() -> None:
    Path('train.py').write_text(WITH_WORKERS)
    found = result_of('--', 'python', 'train.py')
    (process,) = found['processes']
    assert process['worker_count'] == 2
    assert 2 * 50 * MIB < process['workers'] < 2 * 300 * MIB, 'without the dataset, which is shared'
    shown = simulate('--', 'python', 'train.py')
    assert re.search(r'host memory in the process, \d{3}\.\d\sMiB\sin\sits\s2\sDataLoader\sworkers', shown.stdout), (
        shown.stdout
    )


HOLDS_WORKERS = """
import torch
if __name__ == '__main__':
    layer = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    batches = iter(torch.utils.data.DataLoader(torch.ones(4096, 8), batch_size=8, num_workers=2))
    try:
        for batch in batches:
            layer(batch.cuda()).sum().backward()
            optimizer.step()
    finally:
        for worker in batches._workers:
            worker.join(20)
        print('workers ended with', [worker.exitcode for worker in batches._workers])
"""


def test_workers_that_a_script_holds_are_ended_with_it() -> None:
    Path('train.py').write_text(HOLDS_WORKERS)
    ran = simulate('--', 'python', 'train.py')
    assert 'workers ended with [0, 0]' in ran.stdout and ran.returncode == 0, ran.stderr


def test_the_words_of_a_command_are_no_names_of_folders() -> None:
    script = 'import torch; torch.ones(9).cuda()  # ' + 'x' * 300
    found = result_of('--', 'env', 'TOKEN=s3cret', sys.executable, '-c', script)
    assert found['exit_code'] == 0 and [path.name for path in Path('simulated').iterdir()] == ['command.h100-80gb']


def test_a_process_that_is_killed_is_told() -> None:
    Path('train.py').write_text(
        'import os, torch\ntorch.ones(9).cuda()\n'
        'print(open("/proc/self/oom_score_adj").read(), flush=True)\nos.kill(os.getpid(), 9)'
    )
    shown = simulate('--', 'python', 'train.py')
    words = ' '.join(shown.stdout.split())
    assert words.startswith(
        '1000 simulated h100-80gb: not seen: the command was killed (signal 9), most likely because host memory'
    )
    assert shown.returncode == 137 and not Path('simulated').exists()


LOSS = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters())
out = model(torch.ones(4, 8, device='cuda'))
loss = out.sum() * torch.ones(5 << 30, device='cuda').sum()
loss.backward()
"""


def test_a_loss_is_forward_and_no_part_of_backward() -> None:
    Path('train.py').write_text(LOSS)
    assert (
        'Tried to allocate 20.00 GiB in forward of batch 0'
        in simulate('--gpu', 't4', '--', 'python', 'train.py').stdout
    )
    Path('train.py').write_text(
        LOSS.replace('5 << 30', '1').replace('loss.backward', 'loss.expand(5 << 30).clone().sum().backward')
    )
    assert 'in forward of batch 0' in simulate('--gpu', 't4', '--', 'python', 'train.py').stdout
    Path('train.py').write_text(
        LOSS.replace("torch.ones(5 << 30, device='cuda').sum()", '1')
        .replace('out.sum()', 'out.repeat(1 << 26, 1).pow(2).mean()')
        .replace('4, 8', '2, 8')
    )
    assert 'in backward of batch 0' in simulate('--gpu', 't4', '--', 'python', 'train.py').stdout
