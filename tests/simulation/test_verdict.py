"""What ``composer-memprof simulate`` says of a command that was seen in part, or not at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from composer_memprof.simulated_gpu.devices import UnknownDeviceError, find_device
from composer_memprof.simulation.verdict import DOES_NOT_FIT, FITS, FOR_SOME_STEPS, NOT_SEEN, TIGHT, fits, verdict_of
from tests.support.processes.simulated_runs import MIB, SCRIPT, result_of, simulate

pytestmark = pytest.mark.slow

SMALL = SCRIPT.replace('4096', '64')


def seen(found: dict) -> tuple[int, bool | None, str]:
    return found['code'], found['fits'], found['verdict']


def test_figures_close_to_the_limit_fit_with_little_to_spare() -> None:
    assert [verdict_of(size, 1000) for size in (1, 950, 951, 1000)] == [FITS, FITS, TIGHT, TIGHT]
    assert [fits(verdict) for verdict in (FITS, TIGHT, DOES_NOT_FIT, NOT_SEEN)] == [True, True, False, None]
    assert fits(FOR_SOME_STEPS) is None


def test_a_run_with_little_to_spare_says_so_and_which_torch_was_simulated() -> None:
    Path('train.py').write_text(SCRIPT.replace('4096', '1024'))
    found = result_of('--gpu', 't4', '--', 'python', 'train.py')
    taken = found['processes'][0]['devices'][0]['reserved'] * 1.03 + found['total'] - found['available']
    shown = simulate('--gpu', 't4', '--memory', f'{taken / MIB:.0f}MiB', '--', 'python', 'train.py')
    assert 'MiB: fits with less than 5 % to spare. Needs ' in shown.stdout.replace('mib', 'MiB'), shown.stdout
    words = ' '.join(shown.stdout.split())
    assert re.search(r'torch \S+ was simulated; real trainings have reserved up to 4 % more', words)
    assert '--eval runs until one of each was made' in words
    assert shown.returncode == 0


@pytest.mark.parametrize('line', ['def', 'import no_such_module', 'raise SystemExit(1)'])
def test_a_script_that_fails_before_it_uses_a_gpu_was_not_seen(line: str) -> None:
    Path('train.py').write_text(line)
    found = result_of('--', 'python', 'train.py')
    assert seen(found) == (1, None, 'not seen')
    assert found['reason'] == 'the command failed with exit code 1'


def test_a_script_that_fails_by_itself_keeps_its_exit_code_and_its_figures() -> None:
    ending = SMALL.replace('while not loss > 1', 'for _ in range(2)') + 'raise SystemExit(5)'
    Path('train.py').write_text(ending)
    found = result_of('--', 'python', 'train.py')
    assert seen(found) == (5, None, 'not seen')
    assert found['reason'] == 'the command failed with exit code 5; 2 optimizer steps fitted'
    assert found['processes'][0]['devices'][0]['allocated'] > 0


def test_memory_that_runs_out_is_no_crash() -> None:
    Path('train.py').write_text("import torch\ntorch.empty(1 << 40, device='cuda')")
    found = result_of('--gpu', 't4', '--', 'python', 'train.py')
    assert (*seen(found), found['exit_code']) == (3, False, 'does not fit', 1)


def test_a_run_without_an_optimizer_step_was_not_seen_unless_all_of_it_was_asked_for() -> None:
    Path('train.py').write_text("import torch\ntorch.ones(9, device='cuda')")
    found = result_of('--', 'python', 'train.py')
    assert (*seen(found), found['reason']) == (2, None, 'not seen', 'the command ended before an optimizer step')
    assert seen(result_of('--steps', '0', '--', 'python', 'train.py')) == (0, True, 'fits')


BY_HAND = """
import time
import torch
weight = torch.ones(8, device='cuda', requires_grad=True)
while True:
    try:
        weight.square().sum().backward()
        weight.data -= weight.grad
        time.sleep(0.1)
    except KeyboardInterrupt:
        pass
"""


def test_updates_by_hand_are_said_to_be_no_steps_and_figures_outlive_the_time_limit() -> None:
    Path('train.py').write_text(BY_HAND)
    shown = simulate('--time-limit', '10', '--', 'python', 'train.py')
    words = ' '.join(shown.stdout.split())
    assert words.startswith('simulated h100-80gb: not seen: the command was ended before an optimizer step at most ')
    assert re.search(r'No optimizer stepped, though backward ran \d+ times\. Updates by hand are not counted', words)
    assert shown.returncode == 2


ONE_STEP = """
import time
import torch
model = torch.nn.Linear(64, 64).cuda()
model(torch.ones(8, 64, device='cuda')).sum().backward()
torch.optim.AdamW(model.parameters()).step()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ('steps', 'reason'),
    [('3', 'was ended after 1 of 3 optimizer steps'), ('0', 'was ended before its own end'), ('1', '')],
)
def test_what_the_time_limit_cut_off_was_not_seen(steps: str, reason: str) -> None:
    Path('train.py').write_text(ONE_STEP)
    found = result_of('--steps', steps, '--time-limit', '15', '--', 'python', 'train.py')
    if reason:
        assert (*seen(found), found['reason']) == (2, None, 'not seen', f'the command {reason}')
    else:
        assert seen(found) == (0, True, 'fits')
    assert found['processes'][0]['devices'][0]['allocated'] > 0, 'what was seen until then is kept'


EVALUATES = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(12):
    model(torch.ones(8, 64, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 6:
        model.eval()
        with torch.no_grad():
            model(torch.ones(1 << 20, 64, device='cuda'))
        model.train()
    if step == 8:
        torch.save(model.state_dict(), 'model.pt')
"""


def test_a_run_goes_on_until_an_evaluation_and_a_checkpoint_if_asked() -> None:
    Path('train.py').write_text(EVALUATES)
    (three,) = result_of('--', 'python', 'train.py')['processes']
    found = result_of('--eval', '--', 'python', 'train.py')
    (process,) = found['processes']
    assert (seen(found), process['steps']) == ((0, True, 'fits'), 9)
    assert process['devices'][0]['allocated'] > 5 * three['devices'][0]['allocated']
    Path('train.py').write_text(EVALUATES.replace('step == 8', 'step == 80'))
    never = result_of('--eval', '--', 'python', 'train.py')
    assert (*seen(never), never['reason']) == (2, None, 'not seen', 'the command ended before a checkpoint')


OWN_SNAPSHOT = """
import torch
early = torch.ones(1 << 20, device='cuda')
torch.cuda.memory._record_memory_history()
late = torch.ones(1 << 10, device='cuda')
events = torch.cuda.memory._snapshot()['device_traces'][0]
print([event['size'] for event in events if event['action'] == 'alloc'])
"""


def test_a_snapshot_of_the_scripts_own_begins_with_its_own_recording() -> None:
    Path('train.py').write_text(OWN_SNAPSHOT)
    assert simulate('--', 'python', 'train.py').stdout.splitlines()[0] == '[4096]'


SLOW_BACKEND = """
import time
import torch
from composer_memprof.simulation.process.long_compiles import tell_of_long_compiles
tell_of_long_compiles(patience=0.2)
def slow(graph, inputs):
    time.sleep(1)
    return graph.forward
torch.compile(torch.sin, backend=slow)(torch.ones(2))
"""


def test_a_compilation_that_takes_long_says_that_it_is_at_work() -> None:
    Path('train.py').write_text(SLOW_BACKEND)
    lines = simulate('--', 'python', 'train.py').stderr.splitlines()
    said = [line for line in lines if line.startswith('simulated GPU: torch.compile has taken ')]
    assert 'simulated GPU: torch.compile has taken 0 s so far' in said and len(said) <= 4, lines


def test_a_gpu_of_several_sizes_needs_its_size() -> None:
    for name, sizes in (('a100', 'a100-40gb or a100-80gb'), ('V100', 'v100-16gb or v100-32gb')):
        with pytest.raises(UnknownDeviceError, match=f'more than one GPU named {name!r}. Choose {sizes}'):
            find_device(name)
    assert find_device('h100').key == 'h100-80gb' and find_device('rtx 4090').key == 'rtx-4090'
    refused = simulate('--gpu', 'a100', '--', 'python', 'train.py')
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
