"""``composer-memprof check``: the memory of runs is held to a budget, and a check says which line holds more."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from composer_memprof.simulation.verdict import torch_version
from tests.support.json_schemas import as_promised
from tests.support.processes.simulated_runs import MIB, on_a_server

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(64, 256)
        self.head = torch.nn.Linear(256, 32768)

    def forward(self, x):
        x = self.body(x).relu()
        return self.head(x)  # the logits
"""
TRAIN = """
import torch
from model import Net

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters())
history = []
for step in range(10):
    logits = model(torch.randn(512, 64, device='cuda'))
    loss = logits.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
KEEPS_LOGITS = f'{TRAIN}    history.append(logits)\n'
LOGITS = 512 * 32768 * 4
RECORDED = Path('memory_budget.recorded.json')


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return on_a_server('check', *arguments)


def write(train: str) -> None:
    Path('model.py').write_text(MODEL)
    Path('train.py').write_text(train)


def record(*arguments: str, train: str = TRAIN) -> None:
    write(train)
    done = check('--update', *arguments, '--', 'python', 'train.py')
    assert done.returncode == 0, done.stdout + done.stderr


def edit(before: str, after: str, path: Path = Path('memory_budget.yaml')) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_a_change_that_keeps_the_logits_is_above_the_budget_and_the_first_line_names_their_line() -> None:
    without = check()
    assert (without.returncode, without.stdout) == (2, '')
    assert without.stderr.startswith(
        'composer-memprof: there is no memory_budget.yaml; make one with: composer-memprof check --update CONFIG, or '
        'composer-memprof check --update -- COMMAND\n'
    )
    record('--gpu', 'a100-40gb')
    kept = check()
    assert kept.returncode == 0 and kept.stdout.startswith('train: within its budget\n')

    write(KEEPS_LOGITS)
    above = check('--json')
    found = as_promised('check', above.stdout)
    (run,) = found['runs']
    line = MODEL.splitlines().index('        return self.head(x)  # the logits') + 1
    (grown, *_) = run['grown']
    assert (above.returncode, run['status'], found['exit_code']) == (4, 'above', 4)
    assert grown['at'][0] == f'model.py:{line} forward' and grown['module'] == 'head'
    assert grown['after'] - grown['before'] == 3 * LOGITS, 'those of three batches'
    allocated = next(amount for amount in run['amounts'] if amount['measure'] == 'allocated')
    assert allocated['now'] - allocated['recorded'] == 3 * LOGITS
    assert run['summary'].startswith(
        f'train: above its budget: 192.0 MiB more by model.py:{line} forward (kept after its batch, module head); '
    )

    write(TRAIN)
    assert check('--name', 'train').returncode == 0


def test_memory_that_grows_with_each_step_is_above_every_budget() -> None:
    record('--name', 'train')
    edit('allocated: 1 %, reserved: 5 %', 'allocated: 4 GiB, reserved: 4 GiB')
    write(f'{TRAIN}    history.append(torch.empty(16 << 20, device="cuda"))\n')
    checked = check()
    grows = 'train: above its budget: 192.0 MiB more by train.py:14 <module> (kept after its batch); memory grows by 64.0 MiB with each step'
    assert checked.returncode == 4 and checked.stdout.splitlines()[0] == grows, checked.stdout + checked.stderr
    (run,) = as_promised('check', check('--json').stdout)['runs']
    assert (run['status'], run['growth']) == ('above', 64 * MIB)
    assert check('--update').returncode == 0 == check().returncode, 'growth that is recorded is meant'


def test_a_change_that_takes_longer_is_above_the_budget_of_time_alone() -> None:
    record()
    write(
        TRAIN.replace(
            '    loss = ',
            '    for _ in range(9):\n        logits = model(torch.randn(512, 64, device="cuda"))\n    loss = ',
        )
    )
    done = check()
    assert done.returncode == 4
    assert re.match(r'train: above its budget: step [0-9.]+ ms -> [0-9.]+ ms, allowed [0-9.]+ ms\n', done.stdout)
    edit('step_seconds: 10 %', 'step_seconds: 10 s')
    assert check().returncode == 0
    edit('step_seconds: 10 s', 'step_seconds: 10 %')
    edit('"step_seconds"', '"unknown"', RECORDED)
    assert check().stdout.startswith('train: not compared: no step_seconds of it is recorded; --update records it\n')


def test_a_limit_of_time_where_no_step_is_timed_is_said_to_be_not_compared() -> None:
    record('--steps', '0')
    assert 'step_seconds' not in Path('memory_budget.yaml').read_text()
    edit('reserved: 5 %', 'reserved: 5 %, step_seconds: 80 ms')
    done = check()
    assert done.returncode == 2
    assert done.stdout.startswith('train: not compared: its step_seconds is limited and was not found; ')


def test_a_pull_request_gets_a_table_and_a_ci_server_xml() -> None:
    record()
    write(KEEPS_LOGITS)
    done = check('--markdown', '--junit', 'reports/memory.xml')
    assert done.returncode == 4 and done.stdout.startswith(
        '### GPU memory and time\n\n- train: above its budget: 192.0 MiB more'
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith('|')]
    assert rows[0] == '| run | figure | before | now | change | allowed | grew most |' and len(rows) == 5
    named = [row.split(' | ')[1] for row in rows if '192.0 MiB more by model.py:' in row]
    assert named == ['allocated', 'reserved'], 'the time of a step is not about it'
    assert 'by model.py:' in done.stdout.splitlines()[2], 'the first bullet names the line too'
    suite = ElementTree.parse('reports/memory.xml').getroot()
    assert (suite.get('tests'), suite.get('failures'), suite.get('errors')) == ('1', '1', '0')
    failure = suite.find('testcase/failure')
    assert failure is not None and 'by model.py:' in (failure.get('message') or '')


def test_what_cannot_be_written_is_said_before_anything_runs() -> None:
    record()
    Path('a_folder').mkdir()
    Path('a_file').touch()
    Path('train.py').write_text('raise SystemExit("it ran")')
    for path, why in (
        ('a_folder', 'it is a folder'),
        ('a_file/x.xml', 'a_file is not a folder'),
        ('/proc/x.xml', '/proc: '),
    ):
        done = check('--junit', path)
        assert (done.returncode, done.stdout) == (2, ''), done.stdout
        assert done.stderr.startswith(f'composer-memprof: --junit={path} cannot be written: ') and why in done.stderr
        assert done.stderr.count('\n') == 1
    done = check('--update', '--budget', 'a_folder', '--', 'python', 'train.py')
    assert done.returncode == 2 and 'it ran' not in done.stderr and done.stderr.count('\n') == 1


def test_an_update_says_what_changed_and_keeps_limits_and_comments() -> None:
    record()
    edit('allocated: 1 %', 'allocated: 2 %  # enough\n     ')
    write(KEEPS_LOGITS)
    done = check('--update')
    assert done.returncode == 0, done.stderr
    assert 'train: 192.0 MiB more by model.py:' in done.stderr and '(+' in done.stderr
    assert f'recorded with torch {torch_version()} in memory_budget.recorded.json; commit it' in done.stderr
    assert '# enough' in Path('memory_budget.yaml').read_text()
    assert check().returncode == 0
    write(TRAIN)
    assert check().returncode == 0, 'less is within the budget'


def test_figures_of_another_torch_are_not_compared_in_silence() -> None:
    record()
    edit(f'"{torch_version()}"', '"2.5.0"', RECORDED)
    done = check()
    assert done.returncode == 2
    assert done.stdout.startswith(
        f'train: not compared: its figures were recorded with torch 2.5.0, not {torch_version()}, whose allocator '
    )
    edit('allocated: 1 %, reserved: 5 %, step_seconds: 10 %', 'allocated: 1 TiB')
    assert check().returncode == 0, 'an absolute limit needs no recorded figure'
    edit('1 TiB', '1 MiB')
    above = check()
    assert (
        above.returncode == 4 and 'what grew is not known: its figures were recorded with torch 2.5.0' in above.stdout
    )
    check('--update')
    assert {'2.5.0', torch_version()} == set(json.loads(RECORDED.read_text())['runs']['train'])


def test_figures_of_other_settings_are_not_compared() -> None:
    record('--gpu', 't4')
    edit('gpu: t4', 'gpu: a100-40gb')
    done = check()
    assert done.returncode == 2
    assert 'its figures were recorded with gpu t4, and it has a100-40gb now; --update records them anew' in done.stdout
    given = check('--gpu', 't4', '--', 'python', 'train.py')
    assert given.returncode == 2 and given.stderr.startswith(
        'composer-memprof: memory_budget.yaml: runs.train has gpu a100-40gb, not t4; change it there, or give another '
        '--name\n'
    )


def test_a_command_that_fails_or_does_not_fit_says_so_with_its_own_code() -> None:
    record('--memory', '2GB')
    write(TRAIN.replace('loss.backward()', 'raise SystemExit(7)'))
    failed = check()
    assert failed.returncode == 7 and failed.stdout.startswith('train: not seen: the command failed with exit code 7')
    write(TRAIN.replace('randn(512', 'randn(51200'))
    too_large = check()
    assert too_large.returncode == 3 and too_large.stdout.startswith('train: does not fit: ')
    assert check('--update').returncode == 3, 'what does not fit is not recorded'


def test_the_budget_names_more_than_one_run_and_each_gets_a_line() -> None:
    record()
    done = check('--update', '--name', 'four', '--ranks', '4', '--', 'python', 'train.py')
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = as_promised('check', check('--json').stdout)
    assert [(run['name'], run['setup'].get('ranks')) for run in found['runs']] == [('train', None), ('four', '4')]
    unknown = check('--name', 'five')
    assert unknown.returncode == 2
    assert "there is no run 'five'; allowed are train, four" in unknown.stderr


OWN = Path(__file__).with_name('memory_budget.yaml')


def test_this_projects_quickstart_and_fsdp2_config_are_within_their_budget() -> None:
    recorded = json.loads(OWN.with_suffix('.recorded.json').read_text())['runs']
    if any(torch_version() not in versions for versions in recorded.values()):
        pytest.skip(f'the budget has no figures of torch {torch_version()}')
    done = check('--budget', str(OWN))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_recorded_is_small_and_the_same_in_every_checkout() -> None:
    record()
    (figures,) = json.loads(RECORDED.read_text())['runs']['train'].values()
    assert figures['allocated'] > 2 * LOGITS > 100 * MIB and len(RECORDED.read_text()) < 8192
    assert str(Path.cwd()) not in RECORDED.read_text()
