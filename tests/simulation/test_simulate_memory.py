"""``composer-memprof simulate`` when memory runs out: where, how much is needed, and the largest number that fits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.messages import human_bytes
from tests.conftest import simulated_gpu
from tests.support.processes.simulated_runs import MIB, SCRIPT, result_of, simulate


def test_memory_that_runs_out_does_so_with_torchs_own_error_and_an_exit_code_of_its_own() -> None:
    Path('train.py').write_text(SCRIPT)
    found = result_of('--memory', '1500MB', '--compute-capability', '8.0', '--', 'python', 'train.py')
    assert (found['code'], found['exit_code']) == (3, 1)
    assert 'torch.OutOfMemoryError: CUDA out of memory.' in found['stderr']
    (process,) = found['processes']
    assert 'GPU 0 has a total capacity of 1.40 GiB' in process['out_of_memory']
    report = report_on(load_snapshot(Path(process['snapshot'])))
    assert report.oom is not None and report.oom.requested == 64 * MIB


# Three GiB of the device go to the host in each of the three ways that torch has, and one page is written to.
TO_THE_HOST = """
import torch
on_device = torch.ones(1 << 30, dtype=torch.uint8, device='cuda')
pinned = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
pinned.copy_(on_device, non_blocking=True)
pageable = on_device.cpu()
with torch.autograd.graph.save_on_cpu(pin_memory=True):
    square = torch.ones(1 << 28, device='cuda', requires_grad=True).square().sum()
square.backward()
pinned[5:7] = 9
assert pinned.is_pinned() and pinned[4:8].tolist() == [0, 9, 9, 0]
pinned.copy_(on_device)
assert not pinned[:4096].any() and not pageable[-4096:].any()
"""


def test_what_a_device_holds_takes_no_memory_of_the_host_when_it_is_copied_there() -> None:
    Path('train.py').write_text(TO_THE_HOST)
    found = result_of('--steps', '0', '--', 'python', 'train.py')
    assert found['code'] == 0, found['stderr']
    assert found['processes'][0]['host'] < 1000 * MIB


# Memory runs out in the second layer's forward.
TOO_LARGE = """
import torch
open('runs.txt', 'a').write('once ')
layers = [torch.nn.Sequential(torch.nn.Linear(4096, 4096, bias=False), torch.nn.GELU()) for _ in range(2)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(8192, 4096, device='cuda')).square().mean().backward()
optimizer.step()
"""


SMALL = ('--gpu', 't4', '--memory', '840MB')


def test_memory_that_runs_out_in_the_first_batch_says_where() -> None:
    Path('train.py').write_text(TOO_LARGE)
    shown = simulate(*SMALL, '--folder', 'mine', '--', 'python', 'train.py')
    words = ' '.join(shown.stdout.split())
    assert (
        'Tried to allocate 128.00 MiB in forward of batch 0, module 1.1 To see how much it needs, add --find-need'
        in words
    )
    assert Path('runs.txt').read_text() == 'once '
    report = report_on(load_snapshot(Path('mine/rank0.memory_snapshot.pickle')))
    assert report.oom is not None and (report.oom.batch, report.oom.phase) == (0, 'forward')
    sizes = {share.category: share.bytes for share in report.devices[0].at_failure.categories}
    assert (sizes['parameter'], sizes['input']) == (128 * MIB, 128 * MIB)


def test_a_second_run_finds_how_much_a_run_needs_that_does_not_fit() -> None:
    Path('train.py').write_text(TOO_LARGE)
    shown = simulate(*SMALL, '--folder', 'mine', '--find-need', '--', 'python', 'train.py')
    (enough,) = result_of('--gpu', 't4', '--', 'python', 'train.py')['processes'][0]['devices']
    words = ' '.join(shown.stdout.split())
    sizes = [human_bytes(enough[name]) for name in ('allocated', 'reserved')]
    assert f'module 1.1 It needs {sizes[0]} allocated, {sizes[1]} reserved; ' in words
    assert 'more than this GPU has for it' in words and 'memory ran out; the command runs a second time' in shown.stderr
    assert shown.stderr.count('OutOfMemoryError') == 1 and shown.returncode == 3
    assert Path('runs.txt').read_text() == 'once ' * 3
    assert len(list(Path('mine').iterdir())) == 4, 'the second run leaves nothing'


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
    verdict, _, table = refused.stdout.partition('number ')
    assert ' '.join(verdict.split()) == (
        'simulated t4: the largest that fits of those tried is 1; 2 fails for another reason: too large a batch'
    )
    assert [line.split()[-1] for line in table.splitlines()[1:3]] == ['yes', 'fails']
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
