"""What a report advises, tried on the simulated GPU; and the config that ``train`` keeps for that."""

from __future__ import annotations

import io
import json
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from composer_memprof.analysis.run_report.advice.kinds import Advice, in_order
from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.report import RunReport, report_on_run
from composer_memprof.analysis.run_report.trials import Trials, TriedChange
from composer_memprof.config import load
from composer_memprof.config.credentials import LEFT_OUT, without_credentials
from composer_memprof.plans.advised import with_tried_advice
from composer_memprof.report.text.sentences.run_advice import advice_details, trial_notes
from composer_memprof.report.text.sentences.run_verdict import verdict, verdict_text
from composer_memprof.runner import Run
from composer_memprof.vocabulary import CHECKPOINT_BLOCKS
from tests.conftest import child_environment, run_command_that_simulates, simulated_gpu
from tests.support.made_up_runs import MIB, run_of, snapshot_summary, write_files
from tests.support.processes import warm_python
from tests.support.processes.simulated_runs import run_on_a_server

SMALL = (
    *('model.d_model=128', 'model.n_heads=2', 'train_loader.batch_size=4', 'train_loader.max_bytes=200000'),
    *('train_loader.num_workers=0', 'progress_bar=false'),
)
#: Prints what a plan's trials of the config come to, without and with checkpoints.
TRIALS = """
import json
from composer_memprof.plans.forking import outcome_of
from composer_memprof.plans.trial import Trial
trials = Trial(counts_flops=True), Trial(checkpointed='Block', counts_flops=True)
print(json.dumps([outcome_of('run/config.yaml', trial).allocated for trial in trials]))
"""


ONLY = ('callbacks=null', 'callbacks.memprof_memory_snapshot={schedule: {skip: 1ba, active: 2ba}, folder: run}')


def trained(*overrides: str) -> Path:
    Run(load('quickstart', [*SMALL, 'max_duration=4ba', *ONLY, *overrides])).train()
    return Path('run')


def trained_apart(*overrides: str) -> Path:
    """In a process whose memory is its own: what frees little of it is no advice."""
    words = [sys.executable, '-m', 'composer_memprof', 'train', 'quickstart', *SMALL, 'max_duration=4ba', *ONLY]
    warm_python.run([*words, *overrides], env=child_environment(), capture_output=True, check=True)
    return Path('run')


def said(report: RunReport, about: str) -> str:
    return ' '.join(sentence.text for sentence in verdict(report) if sentence.about == about)


def ran_out(requested: int, free: int, **more: Any) -> Path:
    """A run of one rank that asked for too much, and holds layers that can be checkpointed."""
    folder = Path('out')
    folder.mkdir()
    device = {'device': 0, 'total': 100 * MIB, 'requested': requested, 'free': free, 'message': 'CUDA out of memory'}
    rest = dict.fromkeys(('allocated', 'reserved', 'events', 'batch'), None)
    oom = {**device, **rest, 'phase': 'backward', 'asked': []}
    name = 'rank0.3.memory_snapshot.oom.summary.json'
    write_files(folder, 0, {'memory_snapshot.summary': (name, snapshot_summary(0, oom=oom))})
    blocks = [{'name': f'blocks.{n}', 'type': 'Block', 'frees_bytes': 10 * MIB} for n in range(4)]
    hook = {'total_bytes': 50 * MIB, 'peak_bytes': 50 * MIB, 'modules': [], 'checkpoints': blocks}
    write_files(folder, 0, {'saved_tensors_hook': ('s.json', hook)}, **more)
    return folder


# -- the config that is kept ------------------------------------------------------------------------------------------


def test_train_keeps_its_config_beside_the_files_and_a_second_run_keeps_both() -> None:
    folder = trained()
    kept = yaml.safe_load((folder / 'config.yaml').read_text())
    assert kept['model'] == {'name': 'byte_gpt', 'd_model': 128, 'n_heads': 2, 'n_layers': 4, 'max_seq_len': 128}
    assert next(each.entry.kind for each in find_files([folder]).artifacts) == 'config'
    trained('seed=3')
    assert yaml.safe_load((folder / 'config.2.yaml').read_text())['seed'] == 3
    assert yaml.safe_load((folder / 'config.yaml').read_text()) == kept


def test_a_config_is_kept_without_storage_options_and_credentials() -> None:
    environment = {'HF_TOKEN': 'from-the-environment', 'HOME': '/home/me'}
    config = {
        'model': {'name': 'my.model', 'api_key': 'k', 'home': '/home/me', 'note': 'Bearer from-the-environment'},
        'loggers': {'wandb': {'init_kwargs': {'x': 'y'}}},
        'callbacks': {'memprof_flops': {'storage_options': {'key': 'a'}, 'remote_file_name': 's3://runs/x'}},
        'train_loader': {
            'name': 'my.loader',
            'paths': ['s3://me:pw@bucket/a', 'https://b/c?sig=abc', 'data/*.json', 'hf_' + 'a' * 30, 'x --token=1'],
            'awsSecretAccessKey': 'k',
            'credentials': {'user': 'me'},
            'pad_token': '<pad>',
            'max_tokens': 5,
            'monkey': 'ape',
            'key_dim': 64,
            'storage_dtype': 'bf16',
            'db_pwd': 'a',
            'secretkey': 'a',
            'address': 'BlobEndpoint=https://x/;SharedAccessSignature=sv=1',
            'environment': [{'key': 'WANDB_API_KEY', 'value': 'a'}, {'key': 'MODE', 'value': 'a'}],
        },
        'load_object_store': None,
    }
    found = without_credentials(config, environment)
    assert found == {
        'model': {'name': 'my.model', 'api_key': LEFT_OUT, 'home': '/home/me', 'note': LEFT_OUT},
        'callbacks': {'memprof_flops': {'remote_file_name': 's3://runs/x'}},
        'train_loader': {
            'name': 'my.loader',
            'paths': ['s3://bucket/a', 'https://b/c', 'data/*.json', LEFT_OUT, LEFT_OUT],
            'awsSecretAccessKey': LEFT_OUT,
            'credentials': LEFT_OUT,
            'pad_token': '<pad>',
            'max_tokens': 5,
            'monkey': 'ape',
            'key_dim': 64,
            'storage_dtype': 'bf16',
            'db_pwd': LEFT_OUT,
            'secretkey': LEFT_OUT,
            'address': LEFT_OUT,
            'environment': [{'key': LEFT_OUT, 'value': LEFT_OUT}, {'key': LEFT_OUT, 'value': 'a'}],
        },
        'load_object_store': None,
    }


@pytest.mark.parametrize(
    'section',
    [
        {'model': {'name': 'subprocess.run', 'args': ['touch', 'ran']}},
        {'callbacks': {'os.system': {'command': 'touch ran'}}},
        {'train_loader': 'os.getcwd'},
    ],
)
def test_code_that_a_runs_own_config_names_runs_only_if_somebody_agrees(section: dict[str, Any]) -> None:
    folder = ran_out(100 * MIB, 10 * MIB)
    config = {**load('quickstart', SMALL), **section}
    write_files(folder, 0, {'config': ('config.yaml', yaml.safe_dump(config))})
    report = report_on_run(find_files([folder]))
    asked: list[list[str]] = []

    def refuses(names: list[str]) -> bool:
        asked.append(names)
        return False

    tried = with_tried_advice(report, agrees=refuses)
    (names,) = asked
    assert len(names) == 1
    assert tried.not_tried == (
        f'the config in the folder of the run imports and calls {names[0]}. If you trust the folder, add --trust'
    )
    command = warm_python.run(
        [sys.executable, '-m', 'composer_memprof', 'report', str(folder), '--simulate'],
        capture_output=True,
        text=True,
        env=child_environment(),
        check=False,
    )
    assert 'nothing was simulated: the config in the folder of the run imports and calls' in ' '.join(
        command.stderr.split()
    )
    assert not Path('ran').exists()


# -- on the simulated GPU ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_report_simulates_is_what_trials_of_a_plan_come_to() -> None:
    folder = trained_apart('train_loader.batch_size=96')
    planned = run_on_a_server(TRIALS, environment=simulated_gpu('t4'))
    before, after = json.loads(planned.stdout)
    ran = run_command_that_simulates('report', str(folder), '--simulate', '--gpu', 't4', '--json')
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    (advice,) = [each for each in found['advice'] if each['change'] == CHECKPOINT_BLOCKS]
    assert (advice['tried']['before'], advice['tried']['after']) == (before, after)
    assert advice['frees'] == before - after > MIB
    assert (found['trials']['gpu'], found['trials']['fits']) == ('t4', True)
    tried = {change['name'] for change in found['trials']['changes']}
    assert found['trials']['step_seconds'] > 0 and found['trials']['speed'][0].startswith('a step takes ')
    assert all(change['slower'] is not None for change in found['trials']['changes'])
    assert 'checkpoint each Block' in tried and 'fused optimizer' not in tried, 'only what is advised is tried'


def test_a_run_whose_config_is_not_known_keeps_its_estimates_and_says_how_to_give_it() -> None:
    report = with_tried_advice(report_on_run(find_files([run_of(Path('run'), 2)])))
    assert 'give it with --config CONFIG.yaml' in report.not_tried and report.trials is None
    (shard,) = [each for each in report.advice if each.change == 'shard']
    assert shard.tried is None and shard.frees == 40 * MIB
    assert next(trial_notes(report)).startswith('Nothing was simulated, so that all figures of changes are estimates')


def test_without_a_compiler_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path('nothing.sh')
    script.write_text('#!/bin/sh\nexit 1\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv('XDG_CACHE_HOME', str(Path('cache').absolute()))
    monkeypatch.setenv('CC', str(script.absolute()))
    hides_compilers = "import sys; sys.modules['ziglang'] = None; from composer_memprof.cli import main; main()"
    environment = {**child_environment(), 'PATH': '/nowhere'}
    folder, config = run_of(Path('run'), 1), Path('c.yaml')
    config.write_text('model: x')
    command = [sys.executable, '-c', hides_compilers, 'report', str(folder), '--simulate', '--config', str(config)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0 and (folder / 'report.html').exists()
    assert len(done.stderr.splitlines()) == 1 and 'composer-memprof: nothing was simulated: ' in done.stderr


def test_options_of_a_simulation_need_it() -> None:
    command = [sys.executable, '-m', 'composer_memprof', 'report', 'run', '--gpu', 't4']
    done = warm_python.run(command, env=child_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, 'composer-memprof: --gpu needs --simulate\n')


# -- in words ---------------------------------------------------------------------------------------------------------


def tried(name: str, *, fits: bool = False, error: str = '') -> TriedChange:
    return TriedChange(name, f'{name}=1', '+22% FLOPs', 100 * MIB, 70 * MIB, fits, error)


def simulated(report: RunReport, *changes: TriedChange, together: Any = None, fits: bool = False) -> RunReport:
    trials = Trials('t4', 1, 100 * MIB, 120 * MIB, 110 * MIB, fits, list(changes), together)
    (advice, *_) = report.advice
    return replace(report, trials=trials, advice=[replace(advice, tried=changes[0]), *report.advice[1:]])


def test_what_ends_a_cause_stays_before_changes_that_free_more() -> None:
    frees = [
        Advice('load faster', '', ends_cause=True),
        Advice('stop keeping it', '', 2, ends_cause=True),
        Advice('less', '', 3),
        Advice('much less', '', 4),
    ]
    assert [each.what for each in in_order(frees)] == ['load faster', 'stop keeping it', 'much less', 'less']


def test_a_change_that_was_tried_says_from_where_to_where_the_peak_falls() -> None:
    report = report_on_run(find_files([ran_out(30 * MIB, 10 * MIB)]))
    sentences = next(iter(advice_details(simulated(report, tried('less')))))
    assert 'Simulated (less): the peak falls by 30.0 MiB, from 100.0 MiB to 70.0 MiB.' in sentences
    assert sentences[-1] == 'It costs: +22% FLOPs.'
    for slower, words in ((0.19, '19% longer.'), (-0.04, '4% less time.'), (0.001, 'as long as without it.')):
        timed = next(iter(advice_details(simulated(report, replace(tried('less'), slower=slower)))))
        assert f'A sample takes {words}' in timed
    failed = next(iter(advice_details(simulated(report, tried('less', error='ValueError: no')))))
    assert 'It frees about 30.0 MiB, by an estimate.' in failed
    assert 'It could not be simulated: ValueError: no.' in failed
    with_time = simulated(report, tried('x'))
    assert with_time.trials is not None
    with_time = replace(with_time, trials=replace(with_time.trials, speed=['a step takes 1.23 s, 40% MFU']))
    assert list(trial_notes(with_time))[-1] == 'Simulated, a step takes 1.23 s, 40% MFU.'
    assert 'where the peak is 100.0 MiB; 120.0 MiB were recorded.' in next(trial_notes(simulated(report, tried('x'))))


@pytest.mark.parametrize(
    ('changes', 'together', 'fits', 'words'),
    [
        ([tried('a', fits=True), tried('b')], None, False, 'Each of these suffices: a (a=1).'),
        ([tried('a')], tried('a + b', fits=True), False, 'these do together: a + b (a + b=1).'),
        ([tried('a')], tried('a + b'), False, 'No change that was tried suffices, nor do all of them together.'),
        ([tried('a')], None, True, 'the run fits: it needs 120.0 MiB of 110.0 MiB.'),
    ],
)
def test_where_memory_ran_out_it_says_which_changes_suffice(
    changes: list[TriedChange], together: Any, fits: bool, words: str
) -> None:
    report = report_on_run(find_files([ran_out(30 * MIB, 10 * MIB)]))
    assert words in said(simulated(report, *changes, together=together, fits=fits), 'failure')


@pytest.mark.parametrize(
    ('requested', 'words'),
    [
        (30, '20.0 MiB short. The change below is estimated to free enough.'),
        (90, '80.0 MiB short. All changes below together are estimated to free less.'),
        (5, ''),
    ],
)
def test_without_a_simulation_the_room_is_estimated(requested: int, words: str) -> None:
    text = said(report_on_run(find_files([ran_out(requested * MIB, 10 * MIB)])), 'failure')
    assert words in text and (' short. ' in text) == bool(words)


def test_several_changes_are_numbered_as_the_sentence_above_them_counts() -> None:
    report = report_on_run(find_files([ran_out(30 * MIB, 10 * MIB)]))
    (enough,) = report.advice
    several = replace(report, advice=[replace(enough, what='Shard the model.', frees=None), enough])
    assert 'Change 2 below is estimated to free enough' in said(several, 'failure')
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(verdict_text(several))
    shown = console.export_text()
    assert '\n  1. Shard the model.' in shown and f'\n  2. {enough.what[:20]}' in shown
