"""The commands, as a person types them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import composer_memprof
from composer_memprof.artifacts.reading.manifest import find_manifests
from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.cli import app
from composer_memprof.config import ALL_CALLBACKS, LOGGERS, MODELS, ConfigError, build_trainer, load
from tests.conftest import child_environment, entries, json_lines, wait_for
from tests.support.processes import warm_python

QUICKSTART = Path(__file__).parents[2] / 'yamls' / 'quickstart.yaml'
SMALL = ['model.d_model=16', 'model.n_layers=1', 'model.n_heads=2', 'train_loader.max_bytes=100000']


def command(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return warm_python.run(
        [sys.executable, '-m', 'composer_memprof.cli', *map(str, arguments)],
        capture_output=True,
        text=True,
        env=child_environment(**more),
        timeout=300,
    )


@pytest.mark.slow
def test_the_quickstart_trains_and_lists_what_it_left() -> None:
    run = command('train', QUICKSTART, 'model.n_layers=1', 'model.d_model=64', 'train_loader.batch_size=4', '--json')
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result['last_loss'] < 0.6 * result['first_loss']
    kinds = {artifact['entry']['kind'] for artifact in result['artifacts']}
    snapshot = {'memory_snapshot', 'memory_snapshot.page', 'memory_snapshot.summary'}
    assert kinds == {'config', 'host_rss', 'host_rss.summary', *snapshot, 'torch_profiler', 'torch_profiler.summary'}
    assert all(artifact['entry']['status'] == 'saved' for artifact in result['artifacts'])
    peak = max(
        record['rss'] for record in json_lines(Path('runs/quickstart/rank0.0.host_rss.jsonl')) if 'rss' in record
    )
    assert peak < 2 << 30
    assert 'host memory grows' not in run.stderr


@pytest.mark.slow
def test_all_nine_callbacks_leave_a_whole_file_each_in_one_run() -> None:
    begin = time.monotonic()
    run = command('train', QUICKSTART.parent / 'everything.yaml', *SMALL, '--json')
    assert run.returncode == 0, run.stderr
    assert time.monotonic() - begin < 180
    assert 'is disabled' not in run.stderr and 'skips a window' not in run.stderr
    artifacts = [artifact['entry'] for artifact in json.loads(run.stdout)['artifacts']]
    kinds = {artifact['kind'].split('.')[0] for artifact in artifacts}
    assert kinds == {'config', *(name[len('memprof_') :] for name in CALLBACKS)}
    assert {artifact['status'] for artifact in artifacts} == {'saved'}


def test_the_seed_settles_the_first_weights_too() -> None:
    runs = [command('train', QUICKSTART, *SMALL, 'max_duration=2ba', 'callbacks={}', '--json') for _ in range(2)]
    first, second = (json.loads(run.stdout) for run in runs)
    assert first['first_loss'] == second['first_loss'] and first['last_loss'] == second['last_loss']


@pytest.mark.parametrize('workers', [0, 2])
def test_ctrl_c_is_quiet_and_tells_what_is_there(workers: int) -> None:
    # An epoch that outlasts the test: a signal in the end of a DataLoader's iterator, its __del__, is lost by Python.
    settings = [*SMALL, 'train_loader.max_bytes=8000000', f'train_loader.num_workers={workers}']
    settings += ['max_duration=100000ba', 'progress_bar=false']
    for name, skip in (('torch_profiler', 0), ('memory_snapshot', 3)):
        schedule = f'{{skip: {skip}ba, warmup: 0ba, active: 2ba, every: 6ba, repeat: 0}}'
        settings.append(f'callbacks.memprof_{name}.schedule={schedule}')
    run = warm_python.Popen(
        [sys.executable, '-m', 'composer_memprof.cli', 'train', str(QUICKSTART), *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
        start_new_session=True,
    )
    try:
        wait_for(lambda: any(entry.kind == 'torch_profiler' for entry in entries(Path('runs'))), 60)
        time.sleep(1)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: the workers too
        output, errors = run.communicate(timeout=60)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 128 + signal.SIGINT
    assert 'Traceback' not in errors
    assert 'Artifacts of quickstart in runs/quickstart' in output
    assert 'torch_profiler' in output
    assert 'open' not in {entry.status for entry in entries(Path('runs'))}


def test_a_run_that_fails_shows_its_error_and_then_what_it_left() -> None:
    Path('mine.py').write_text(
        'from composer_memprof.examples.byte_gpt import ByteGPT\n'
        'class Fails(ByteGPT):\n'
        '    calls = 0\n'
        '    def forward(self, batch):\n'
        '        Fails.calls += 1\n'
        '        if Fails.calls > 5: raise RuntimeError("out of memory, say")\n'
        '        return super().forward(batch)\n'
    )
    run = command('train', QUICKSTART, *SMALL, 'model.name=mine.Fails', 'callbacks={memprof_host_rss: {}}')
    assert run.returncode == 1
    assert 'RuntimeError: out of memory, say' in run.stderr
    assert 'host_rss.jsonl' in run.stdout


def test_the_table_fits_a_narrow_terminal() -> None:
    run = command('train', QUICKSTART, 'max_duration=46ba', *SMALL, COLUMNS='60')
    assert run.returncode == 0, run.stderr
    assert all(len(line) <= 60 for line in run.stdout.splitlines() if not line.startswith(('Next', 'or open'))), (
        run.stdout
    )
    for words in ('torch_profiler', 'batch', 'KiB', 'loss:', 'first', 'last', 'Next, try:', 'inspect'):
        assert words in run.stdout
    assert all(line == line.rstrip() for line in run.stdout.splitlines())
    assert 'ba/s' in run.stderr, 'a progress bar'


@pytest.mark.parametrize(
    ('override', 'words'),
    [
        ('max_durations=3ba', ['max_durations', "'max_duration'"]),
        ('max_duration=3bas', ["max_duration='3bas'", "'ba'"]),
        ('callbacks.memprof_host_rs={}', ['memprof_host_rs', "'memprof_host_rss'"]),
        ('callbacks.memprof_host_rss.intervall=1', ['memprof_host_rss.intervall', "'interval'"]),
        (
            'callbacks.memprof_host_rss.interval=-1',
            ['memprof_host_rss', 'interval must be 0.001 to 86400 seconds, not -1'],
        ),
        ('callbacks.memprof_host_rss.folder="{run_nam}"', ['folder', "'run_name'"]),
        ('callbacks.memprof_host_rss.folder={run_name}', ['folder', 'in quotes']),
        ('callbacks.memprof_torch_profiler.schedule.active=3bar', ['schedule.active', "'3bar'"]),
        ('callbacks.memprof_torch_profiler.schedule.skip=18ba', ['MemorySnapshot and TorchProfiler']),
        ('callbacks.memprof_host_rss.remote_file_name=gs://b/x', ['composer_memprof[gcs]']),
        ('callbacks.memprof_host_rss.folder=/proc/nowhere', ["folder='/proc/nowhere'"]),
        ('callbacks.lr_monitor.rate=1', ['lr_monitor.rate']),
        ('callbacks=3', ['callbacks must be a mapping', 'not 3']),
        (
            'callbacks.memprof_host_rss.storage_option={secret: HUNTER2}',
            ['storage_option is unknown', "'storage_options'"],
        ),
        ('train_loader.name=./loader.py', ['train_loader.name', './loader.py']),
        ('load_path=/nope', ['/nope']),
        ('model.name=byte_gp', ['model.name', "'byte_gpt'"]),
        ('model.name=no_such_module.build', ['no_such_module']),
        ('model.d_modell=4', ['model.d_modell', "'d_model'"]),
        ('train_loader.paths=[nowhere/*.txt]', ['nowhere/*.txt']),
        ('optimizer.name=adam', ['optimizer.name', "'adamw'"]),
        ('loggers.tensorbord={}', ['loggers.tensorbord', "'tensorboard'"]),
        ('run_name=../../x', ['run_name=']),
        ('model=null', ['model is missing']),
        ('nonsense', ['nonsense', 'key=value']),
    ],
)
def test_a_users_mistake_is_one_line_that_names_it(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_trainer(load(QUICKSTART, [*SMALL, override]))
    message = str(caught.value)
    assert '\n' not in message
    assert all(word in message for word in words), message


def test_a_users_mistake_exits_with_2_and_no_traceback() -> None:
    for arguments in (['train', QUICKSTART, 'max_durations=3'], ['train', 'missing.yaml'], ['push', 'missing']):
        run = command(*arguments)
        assert run.returncode == 2, run.stderr
        assert 'Traceback' not in run.stderr
        assert len([line for line in run.stderr.splitlines() if 'composer-memprof:' in line]) == 1
    assert "RUN_FOLDER 'missing' is not a directory" in run.stderr
    assert not Path('runs').exists()


@pytest.mark.slow
def test_a_yaml_finds_a_planted_leak_and_is_silent_without_it() -> None:
    Path('leaky.py').write_text(
        'from tests.callbacks.test_host_rss import leaky_loader\n'
        'from tests.conftest import Regression\n'
        'def loader(worker=-1):\n    return leaky_loader(worker)\n'
        'def model():\n    return Regression()\n'
    )
    config = {
        'run_name': 'leak',
        'max_duration': '1ep',
        'device': 'cpu',
        'model': 'leaky.model',
        'train_loader': {'name': 'leaky.loader', 'worker': 1},
        'callbacks': {'memprof_host_rss': {}},
    }
    Path('leak.yaml').write_text(yaml.safe_dump(config))
    leaking = command('train', 'leak.yaml')
    assert leaking.returncode == 0, leaking.stderr
    assert leaking.stderr.count('host memory grows: DataLoader worker 1 (pid ') == 1
    assert command('train', 'leak.yaml', 'train_loader.worker=-1').stderr.count('host memory grows') == 0


def test_composers_callbacks_loggers_and_schedulers_stand_beside_ours() -> None:
    config = load(
        QUICKSTART,
        [
            *SMALL,
            'max_duration=3ba',
            'callbacks={memprof_host_rss: {}, speed_monitor: {window_size: 2}, lr_monitor: {}}',
            'loggers={tensorboard: {log_dir: tb}, file: {filename: "log-{rank}.txt"}}',
            'scheduler={name: linear_decay_with_warmup, t_warmup: 1ba}',
            'eval_loader={name: text_files, paths: "{stdlib}/*.py", max_bytes: 20000}',
        ],
    )
    trainer = build_trainer(config)
    trainer.fit()
    trainer.close()
    assert list(Path('tb').rglob('events*'))
    assert 'host_rss/rss' in Path('log-0.txt').read_text()


def test_the_users_own_builder_is_named_by_a_dotted_path(monkeypatch: pytest.MonkeyPatch) -> None:
    Path('mine.py').write_text(
        'from composer_memprof.examples.byte_gpt import ByteGPT\n'
        'def build(width):\n    return ByteGPT(d_model=width, n_heads=1, n_layers=1)\n'
    )
    monkeypatch.syspath_prepend('.')
    config = load(QUICKSTART, ['max_duration=1ba', 'callbacks=null'])
    config['model'] = {'name': 'mine.build', 'width': 8}
    trainer = build_trainer(config)
    assert sum(parameter.numel() for parameter in trainer.state.model.parameters()) < 10_000
    trainer.close()
    config['model'] = {'name': 'mine.biuld', 'width': 8}
    with pytest.raises(ConfigError, match="'build'"):
        build_trainer(config)


def test_the_quickstart_model_has_between_1_and_3_million_parameters() -> None:
    model = MODELS['byte_gpt'](d_model=160, n_heads=4, n_layers=4, max_seq_len=128)
    assert 1e6 < sum(parameter.numel() for parameter in model.parameters()) < 3e6


def test_every_foundry_name_is_a_callback_and_every_logger_a_logger() -> None:
    from composer.core import Callback
    from composer.loggers import LoggerDestination

    assert all(issubclass(callback, Callback) for callback in ALL_CALLBACKS.values())  # type: ignore[arg-type]
    assert all(issubclass(logger, LoggerDestination) for logger in LOGGERS.values())  # type: ignore[arg-type]


def test_push_starts_without_torch() -> None:
    code = 'import sys, composer_memprof.cli, composer_memprof.artifacts.uploading.push.push; print("torch" in sys.modules)'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=child_environment())
    assert run.stdout.strip() == 'False', run.stderr


COMMANDS = ('train', 'callbacks', 'push', 'inspect', 'diff', 'report', 'ls', 'watch')


def test_help_names_the_commands() -> None:
    run = command('--help')
    assert run.returncode == 0
    assert all(f'\n  {name} ' in run.stdout for name in COMMANDS)
    assert '--install-completion' in run.stdout


@pytest.mark.parametrize('columns', ['60', '100'])
def test_the_help_of_each_command_has_examples_that_fit_the_terminal(columns: str) -> None:
    for name in ('', *COMMANDS):
        run = command(*filter(None, (name, '--help')), COLUMNS=columns)
        assert run.returncode == 0, run.stderr
        lines = run.stdout.splitlines()
        assert all(len(line) <= int(columns) and line == line.rstrip() for line in lines), run.stdout
        heading = next(n for n, line in enumerate(lines) if line.strip() in ('Example:', 'Examples:'))
        assert lines[heading + 1].startswith(f'    composer-memprof {name}'), run.stdout
    train = ' '.join(command('train', '--help', COLUMNS=columns).stdout.split())
    assert 'everything, fsdp2, modules, python_calls, quickstart' in train


def test_the_version_also_by_python_m() -> None:
    for arguments in (['-m', 'composer_memprof', '--version'], ['-m', 'composer_memprof.cli', '--version']):
        run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=child_environment())
        assert (run.returncode, run.stdout) == (0, f'composer-memprof {composer_memprof.__version__}\n')


def test_a_shell_completes_commands_and_options() -> None:
    shown = subprocess.run(
        ['bash', '-c', f'{sys.executable} -m composer_memprof --show-completion; true'],
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    assert '_COMPOSER_MEMPROF_COMPLETE=complete_bash' in shown.stdout, shown.stderr
    asked = {'_COMPOSER_MEMPROF_COMPLETE': 'complete_bash', 'COMP_WORDS': 'composer-memprof ins', 'COMP_CWORD': '1'}
    assert command(**asked).stdout.split() == ['inspect']
    asked = {**asked, 'COMP_WORDS': 'composer-memprof inspect --j', 'COMP_CWORD': '2'}
    assert command(**asked).stdout.split() == ['--json']


def test_the_callbacks_are_listed_for_a_person_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    described = {each['name']: each for each in json.loads(command('callbacks', '--json').stdout)}
    assert set(described) == set(CALLBACKS)
    assert described['memprof_host_rss']['class_name'] == 'HostRSS'
    assert described['memprof_host_rss']['defaults']['stages'] == ['train']
    monkeypatch.setenv('COLUMNS', '60')
    run = CliRunner().invoke(app, ['callbacks'])  # in this process: another one imports torch for seconds
    assert run.exit_code == 0, run.stderr
    assert all(len(line) <= 60 and line == line.rstrip() for line in run.stdout.splitlines()), run.stdout
    text = ' '.join(run.stdout.split())
    for name, each in described.items():
        assert f'{name} ({each["class_name"]}) {each["records"]}' in text
    assert 'interval=0.5' in text and 'Parameters of all callbacks overwrite=false schedule=null' in text


def test_a_progress_bar_is_drawn_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 100, 0, 0))
    process = warm_python.Popen(
        [sys.executable, '-m', 'composer_memprof.cli', 'train', str(QUICKSTART), 'max_duration=2ba', *SMALL],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=child_environment(),
    )
    os.close(theirs)
    drawn = b''
    try:
        while chunk := os.read(ours, 65536):
            drawn += chunk
    except OSError:  # the terminal is closed with its last writer
        pass
    assert process.wait(60) == 0
    assert b'2/2' in drawn
    assert find_manifests(Path())
    assert entries(Path(), 'host_rss')
