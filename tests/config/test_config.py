"""A run config: its names, its overrides, and what a mistake in it says."""

from __future__ import annotations

import re
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from composer.algorithms import GradientClipping
from composer.core import Algorithm
from composer.profiler import Profiler

from composer_memprof import HostRSS
from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.config import ALGORITHMS, ConfigError, build_trainer, load
from composer_memprof.config.catalog import describe_callbacks, shared_defaults
from composer_memprof.examples.configs import shipped_configs
from composer_memprof.examples.text_files import text_files
from composer_memprof.messages import MemprofWarning, logger
from composer_memprof.runner import Run
from tests.conftest import entries, train

SMALL = ['model.d_model=16', 'model.n_layers=1', 'model.n_heads=2', 'train_loader.max_bytes=100000']
#: The quickstart with HostRSS alone.
ONE = [
    *SMALL,
    *(f'callbacks.{name}=null' for name in ('memprof_memory_snapshot', 'memprof_torch_profiler', 'lr_monitor')),
]


def refusal(*overrides: str, **more: Any) -> str:
    """The one line that a user's mistake is."""
    with pytest.raises(ConfigError) as caught:
        build_trainer({**load('quickstart', [*ONE, *overrides]), **more})
    assert '\n' not in str(caught.value)
    return str(caught.value)


def test_overrides_apply_in_order_so_that_null_before_a_callback_leaves_it_alone() -> None:
    config = load('quickstart', ['callbacks=null', 'callbacks.memprof_host_rss.interval=0.1'])
    assert config['callbacks'] == {'memprof_host_rss': {'interval': 0.1}}


def test_the_shipped_configs_are_those_of_the_folder_yamls_and_all_load() -> None:
    folder = Path(__file__).parents[2] / 'yamls'
    assert {name: file.read_bytes() for name, file in shipped_configs().items()} == {
        file.stem: file.read_bytes() for file in folder.glob('*.yaml')
    }
    assert all(load(name)['model'] for name in shipped_configs())


def test_a_file_wins_over_a_shipped_config_of_its_name_and_an_unknown_name_is_told() -> None:
    assert load('quickstart')['run_name'] == 'quickstart'
    Path('quickstart').write_text('{run_name: mine, model: byte_gpt, train_loader: text_files, max_duration: 1ba}')
    assert load('quickstart')['run_name'] == 'mine'
    with pytest.raises(ConfigError, match=r"'quickstrt' is not a file.*everything, fsdp2.*did you mean 'quickstart'"):
        load('quickstrt')
    with pytest.raises(ConfigError, match=r"'nowhere/my\.yaml' is not a file"):
        load('nowhere/my.yaml')
    Path('folder').mkdir()
    with pytest.raises(ConfigError, match="'folder' is not a file"):
        load('folder')


def test_a_tilde_is_the_home_folder_in_a_config_a_folder_and_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path('home').absolute()
    home.mkdir()
    (home / 'text.txt').write_text('abc' * 1000)
    (home / 'my.yaml').write_bytes(shipped_configs()['quickstart'].read_bytes())
    monkeypatch.setenv('HOME', str(home))
    config = load('~/my.yaml', [*ONE, 'callbacks.memprof_host_rss.folder="~/{run_name}"', 'max_duration=1ba'])
    config['train_loader'] = {'name': 'text_files', 'paths': '~/*.txt', 'batch_size': 2}
    trainer = build_trainer(config)
    trainer.fit()
    trainer.close()
    assert entries(home / 'quickstart', 'host_rss') and not Path('~').exists()
    train(HostRSS(folder='~/in_python'), max_duration='1ba')
    assert entries(home / 'in_python', 'host_rss') and not Path('~').exists()
    assert 'folder=' in refusal('callbacks.memprof_host_rss.folder="~nobody-of-that-name/x"')


@pytest.mark.parametrize(
    ('typed', 'text'),
    [('20261121', '20261121'), ('2026_11_21', '2026_11_21'), ('1e5', '1e5'), ('1.50', '1.50'), ('a', 'a')],
)
def test_a_run_name_is_text_as_it_was_typed(typed: str, text: str) -> None:
    assert load('quickstart', [f'run_name={typed}'])['run_name'] == text


def test_a_run_name_of_the_file_is_text_too_and_no_other_kind_of_value() -> None:
    Path('my.yaml').write_text('{run_name: 20261121, model: byte_gpt, train_loader: text_files, max_duration: 1ba}')
    assert load('my.yaml')['run_name'] == '20261121'
    assert 'run_name must be text' in refusal('run_name=[1]')
    assert 'run_name must be text' in refusal('run_name={a: 1}')


def test_null_takes_a_callback_out_and_a_bare_name_in_the_file_is_its_defaults() -> None:
    assert set(load('quickstart', ONE)['callbacks']) == {'memprof_host_rss'}
    assert 'lr_monitor' in load('quickstart')['callbacks']
    load('quickstart', ['callbacks.memprof_flops=null'])  # known, and not in this config
    assert 'memprof_host_rs is unknown; closest of' in refusal('callbacks.memprof_host_rs=null')
    assert set(load('quickstart', ['loggers.file={}', 'loggers.file=null'])['loggers']) == set()
    Path('my.yaml').write_text(shipped_configs()['quickstart'].read_text() + '  speed_monitor:\n')
    assert load('my.yaml')['callbacks']['speed_monitor'] is None
    trainer = build_trainer(load('my.yaml', ONE))
    assert {'HostRSS', 'SpeedMonitor'} <= {type(callback).__name__ for callback in trainer.state.callbacks}
    trainer.close()


@pytest.mark.parametrize(
    ('override', 'message'),
    [
        ('optimizer.lr=fast', "optimizer.lr must be a number, not 'fast'"),
        ('optimizer.foreach=maybe', None),  # torch takes it
        ('optimizer.betas=0.9', 'optimizer.betas must be a list, not 0.9'),
        ('train_loader.seq_len=long', "train_loader.seq_len must be a whole number, not 'long'"),
        ('train_loader.paths=3', 'train_loader.paths must be text or a list, not 3'),
        ('callbacks.memprof_host_rss.interval=fast', 'callbacks.memprof_host_rss: interval'),
        ('parallelism_config={fdsp2: {}}', "parallelism_config.fdsp2 is unknown; allowed are fsdp, fsdp2, tp; did you mean 'fsdp2'?"),
        ('parallelism_config=fsdp2', "parallelism_config must be a mapping, such as {fsdp2: {}}, not 'fsdp2'"),
        ('profiler={schedul: {}}', 'profiler.schedule is missing'),
        ('profiler={schedule: {actve: 1}}', "profiler.schedule.actve is unknown; allowed are skip_first, wait, warmup, active, repeat; did you mean 'active'?"),
        ('profiler={schedule: {}, torch_prof_foldr: x}', "profiler.torch_prof_foldr is unknown; allowed are"),
        ('python_log_level=loud', "python_log_level must be debug, info, warning, error or critical, not 'loud'"),
        ('profiler=3', 'profiler must be a mapping'),
        ('algorithms.gradient_cliping={}', "algorithms.gradient_cliping is unknown; a dotted path, or closest of"),
        ('algorithms.gradient_clipping={clipping_typ: norm}', 'algorithms.gradient_clipping.clipping_typ is unknown'),
        ('callbacks.memprof_host_rss.stages=[eval]', "callbacks.memprof_host_rss: stages=['eval'] needs an eval_loader"),
        ('callbacks.memprof_host_rss.stages=[predict]', "callbacks.memprof_host_rss: stages=['predict'] needs Trainer.predict"),
        ('callbacks.memprof_host_rss.schedule={active: 1ba, stages: [eval]}', 'needs an eval_loader'),
    ],
)  # fmt: skip
def test_a_mistake_names_the_key_the_value_and_what_is_allowed(override: str, message: str | None) -> None:
    if message is None:
        build_trainer(load('quickstart', [*ONE, override])).close()
    else:
        assert message in refusal(override)


@pytest.mark.parametrize('key', ['wandb_key', 'callbacks.memprof_host_rss.key', 'model.key', 'loggers.file.key'])
def test_a_value_under_an_unknown_key_is_not_shown(key: str) -> None:
    message = refusal(f'{key}=HUNTER2')
    assert f'{key} is unknown' in message
    assert 'HUNTER2' not in message
    assert 'HUNTER2' not in refusal(f'{key}={{secret: HUNTER2}}')


def test_python_log_level_is_that_of_this_package_too(caplog: pytest.LogCaptureFixture) -> None:
    before = logger.level
    try:
        with pytest.raises(ConfigError):
            build_trainer(load('quickstart', [*ONE, 'python_log_level=debug', 'optimizer.lr=fast']))
    finally:
        logger.setLevel(before)
    assert 'optimizer could not be built' in caplog.text and 'Traceback' in caplog.text


def test_stages_of_which_one_does_not_occur_are_a_warning() -> None:
    with pytest.warns(MemprofWarning, match=r"memprof_host_rss: stages=\['eval', 'train'\] needs an eval_loader"):
        build_trainer(load('quickstart', [*ONE, 'callbacks.memprof_host_rss.stages=[train, eval]'])).close()
    evaluation = 'eval_loader={name: text_files, paths: "{stdlib}/*.py", max_bytes: 20000}'
    with warnings.catch_warnings():
        warnings.simplefilter('error', MemprofWarning)
        build_trainer(load('quickstart', [*ONE, 'callbacks.memprof_host_rss.stages=[eval]', evaluation])).close()


def test_algorithms_and_the_profiler_are_those_of_llm_foundry() -> None:
    assert {'gradient_clipping', 'alibi', 'gated_linear_units', 'low_precision_layernorm'} <= set(ALGORITHMS)
    assert all(issubclass(algorithm, Algorithm) for algorithm in ALGORITHMS.values())  # type: ignore[arg-type]
    overrides = [
        *(*ONE, 'max_duration=4ba', 'algorithms.gradient_clipping={clipping_type: norm, clipping_threshold: 1.0}'),
        'profiler.schedule={skip_first: 0, wait: 0, warmup: 1, active: 2, repeat: 1}',
        'profiler.json_trace_handler={folder: traces, merged_trace_filename: null}',
        'profiler.torch_prof_folder=torch_traces',
    ]
    trainer = build_trainer(load('quickstart', overrides))
    assert [type(algorithm) for algorithm in trainer.state.algorithms] == [GradientClipping]
    assert isinstance(trainer.state.profiler, Profiler)
    trainer.fit()
    trainer.close()
    assert list(Path('traces').glob('*.json')) and list(Path('torch_traces').glob('*.json'))


def test_the_catalog_has_all_callbacks_with_a_line_and_their_defaults() -> None:
    described = {callback.name: callback for callback in describe_callbacks()}
    assert set(described) == set(CALLBACKS)
    host_rss = described['memprof_host_rss']
    assert (host_rss.class_name, host_rss.defaults['interval']) == ('HostRSS', 0.5)
    assert all(callback.records.endswith('.') and '`' not in callback.records for callback in described.values())
    assert described['memprof_memray'].further_arguments == 'tracker_arguments'
    shared = shared_defaults(list(described.values()))
    assert shared['overwrite'] is False and 'interval' not in shared and 'folder' not in shared


def test_a_close_that_waits_for_uploads_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    put_file, write, told = MemoryFileSystem.put_file, sys.stderr.write, threading.Event()

    def once_the_line_is_out(*arguments: Any, **more: Any) -> None:
        told.wait(timeout=15)
        put_file(*arguments, **more)

    def noting(text: str) -> int:
        if 'to be uploaded' in text:
            told.set()
        return write(text)

    monkeypatch.setattr(MemoryFileSystem, 'put_file', once_the_line_is_out)
    monkeypatch.setattr(sys.stderr, 'write', noting)
    run = Run(load('quickstart', [*ONE, 'max_duration=1ba', 'callbacks.memprof_host_rss.remote_file_name=memory://x']))
    run.train()
    assert re.search(r'waiting for \d+ files? \(.*\) to be uploaded, up to 20 s', capfd.readouterr().err)
    assert entries(Path(), 'host_rss')[0].status == 'uploaded'


def test_no_text_in_the_files_is_one_line(tmp_path: Path) -> None:
    (tmp_path / 'short.txt').write_text('abc')
    with pytest.raises(ValueError, match='3 bytes are less than one batch of 16 x 128'):
        text_files('short.txt')
