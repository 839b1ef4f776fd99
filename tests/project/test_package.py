"""The package as others install and import it."""

from __future__ import annotations

import configparser
import inspect
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

import composer_memprof
from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.recorders.torch_private import CHECKED
from tests.conftest import child_environment, entries
from tests.support.processes import warm_python
from tests.support.processes.python_code import PACKAGE_ANEW
from tests.support.recordings.snapshots import event, plain, saved

ROOT = Path(__file__).parents[2]
METADATA = configparser.RawConfigParser()
METADATA.read(ROOT / 'setup.cfg')


def run(*command: object, start: Any = subprocess.run, **more: Any) -> str:
    done = start([*map(str, command)], capture_output=True, text=True, timeout=300, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(code: str) -> str:
    """What code prints in a process that has imported torch and Composer."""
    return run(sys.executable, '-c', code, start=warm_python.run, env=child_environment())


@pytest.fixture(scope='module')
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout to build in, as a clone has it."""
    folder = tmp_path_factory.mktemp('checkout') / 'clone'
    ignored = shutil.ignore_patterns(
        *('.venv*', '.git', 'runs', 'build', 'dist', '*.egg-info', '__pycache__', 'node_modules', '.*_cache'),
        '.hypothesis',
    )
    shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored)
    return folder


#: The parameters of each function: a ``*`` before those that are given by name, ``…`` where more may be given.
SIGNATURES = {
    'load_snapshot': 'path limit_memory',
    'memprofilable': 'target',
    'plan': 'config overrides * gpu memory compute_capability ranks ranks_per_node vary changes evaluation',
    'profile': '*callbacks run_name **settings',
    'simulate': 'what * arguments gpu memory compute_capability ranks rank ranks_per_node steps evaluation devices kept values '
    'time_limit find_need versus folder trace largest',
}


@pytest.mark.parametrize('name', SIGNATURES)
def test_what_others_call_keeps_its_parameters_and_their_order(name: str) -> None:
    found: list[str] = []
    for parameter in inspect.signature(getattr(composer_memprof, name)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(each.startswith('*') for each in found):
            found.append('*')
        found.append(str(parameter.replace(annotation=parameter.empty, default=parameter.empty)))
    assert ' '.join(found) == SIGNATURES[name]


def test_dir_shows_the_callbacks_and_the_functions() -> None:
    names = {callback.__name__ for callback in CALLBACKS.values()} | SIGNATURES.keys() | {'MemprofError'}
    assert names <= set(dir(composer_memprof))
    assert names == set(composer_memprof.__all__)
    assert '__version__' in dir(composer_memprof)


def test_a_snapshot_is_read_without_torch_and_composer() -> None:
    """A torch and a Composer that can't be imported, as on a machine that only analyzes."""
    saved(plain(event('alloc', 512, 8)))
    code = (
        "import sys; sys.modules.update({'torch': None, 'composer': None}); from composer_memprof import load_snapshot; "
        "print(load_snapshot('x.pickle').devices[0].size.tolist())"
    )
    assert json.loads(run(sys.executable, '-c', code, env=child_environment())) == [8]


#: A torch in which a public module and a private name have moved: the first breaks three imports, the other none.
TORCH_THAT_CHANGED = f"""{PACKAGE_ANEW}
import composer, torch, torch._dynamo
sys.modules['torch.utils.hooks'] = None
del torch._C._current_graph_task_id
"""

ONE_BY_ONE = """
import json
import composer_memprof
from composer_memprof import HostRSS, SavedTensorsHook
from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.config import ConfigError, build_trainer, load

print(json.dumps({name: callback.__name__ for name, callback in CALLBACKS.items()}))
made = []
for name in composer_memprof.__all__:
    if name[0].isupper() and not name.endswith('Error'):
        try:
            getattr(composer_memprof, name)()
            made.append(name)
        except ImportError as error:
            print(error)
assert len(made) == len(CALLBACKS) - 3, made
small = ['max_duration=2ba', 'model.d_model=16', 'model.n_layers=1', 'model.n_heads=2', 'train_loader.max_bytes=100000']
try:
    build_trainer(load('quickstart', [*small, 'callbacks=null', 'callbacks.memprof_saved_tensors_hook.folder=x']))
except ConfigError as error:
    print(error)
trainer = build_trainer(load('quickstart', small))
trainer.fit()
trainer.close()
"""


def test_what_one_callback_misses_in_torch_concerns_no_other() -> None:
    told = python(TORCH_THAT_CHANGED + ONE_BY_ONE).splitlines()
    assert json.loads(told[0]) == {name: callback.__name__ for name, callback in CALLBACKS.items()}
    reason = f'does not import with torch {torch.__version__} and mosaicml 0.32'
    advice = f'composer_memprof was checked with torch {CHECKED}; install one of these, or a newer composer_memprof'
    refused = [line for line in told if reason in line]
    assert [line.partition(': ')[0] for line in refused] == [
        *('Flops', 'MemProfiler', 'SavedTensorsHook', 'callbacks.memprof_saved_tensors_hook')
    ]
    assert all('ModuleNotFoundError: import of torch.utils.hooks' in line for line in refused)
    assert all(line.endswith(advice) for line in refused)
    assert entries(Path(), 'host_rss')


def test_the_list_of_callbacks_says_what_the_installed_torch_lacks_for_each() -> None:
    code = f'{TORCH_THAT_CHANGED}\nfrom composer_memprof.cli import app\napp(["callbacks", "--json"])'
    listed = {each['name']: each for each in json.loads(python(code))}
    assert set(listed) == set(CALLBACKS)
    unavailable = {name: each['unavailable'] for name, each in listed.items() if each['unavailable']}
    assert 'memprof_host_rss' not in unavailable and 'memprof_torch_profiler' not in unavailable
    for name in ('memprof_flops', 'memprof_mem_profiler', 'memprof_saved_tensors_hook'):
        assert 'import of torch.utils.hooks halted' in unavailable[name][0]
    told = f'torch {torch.__version__} has no torch._C._current_graph_task_id (seen in torch {CHECKED}); install a'
    assert unavailable['memprof_fsdp_mem_tracker'][0].startswith(told)
    assert unavailable['memprof_memory_snapshot'][0].startswith('GPU: torch ')


def test_an_import_that_fails_for_all_callbacks_gives_the_reason() -> None:
    code = f'{PACKAGE_ANEW}import composer.core; composer.core.Event = object; from composer_memprof import HostRSS'
    done = warm_python.run([sys.executable, '-c', code], capture_output=True, text=True, env=child_environment())
    told = (
        "ImportError: composer_memprof.callbacks does not import: AttributeError: type object 'object' has no attribute"
    )
    assert told in done.stderr


def test_the_entry_points_are_the_registry() -> None:
    listed = METADATA['options.entry_points']['llmfoundry_callbacks'].split('\n')
    expected = {f'{name} = composer_memprof:{callback.__name__}' for name, callback in CALLBACKS.items()}
    assert set(filter(None, listed)) == expected


def test_the_clients_of_the_stores_fit_beside_llm_foundry() -> None:
    """The whole is checked by ``make test-llm-foundry``, which installs both; here, that the bounds stand."""
    extras = METADATA['options.extras_require']
    for extra, client, fits in (
        ('s3', 's3fs', '2023.6.0'),
        ('gcs', 'gcsfs', '2023.6.0'),
        ('azure', 'adlfs', '2023.8.0'),
    ):
        requirement = Requirement(extras[extra])
        assert requirement.name == client and requirement.specifier.contains(fits)
        assert not requirement.specifier.contains('0.8.0'), 'an old client without bounds, which pip would take'
    assert not Requirement(extras['gcs']).specifier.contains('2025.12.0'), 'it brings protobuf 7; wandb does not import'
    for needed in filter(None, METADATA['options']['install_requires'].split('\n')):
        if not needed.startswith('#') and Requirement(needed).name == 'fsspec':
            assert Requirement(needed).specifier.contains('2023.6.0')


def test_each_dependency_has_a_line_that_says_what_for() -> None:
    text = (ROOT / 'setup.cfg').read_text()
    for section in ('install_requires', 'dev'):
        block = text.partition(f'\n{section} =')[2]
        lines = [line.strip() for line in block.split('\n')[1:]]
        lines = lines[: next(n for n, line in enumerate(lines) if not line or line.startswith('['))]
        needed = [n for n, line in enumerate(lines) if not line.startswith(('#', 'composer_memprof['))]
        assert needed and all(lines[n - 1].startswith('#') for n in needed), section


TYPES = """
from collections.abc import Callable, Iterator
from typing import Any, Coroutine

from typing_extensions import assert_type

from composer_memprof import memprofilable


@memprofilable
def tokenize(text: str, limit: int = 3) -> list[str]:
    return text.split()[:limit]


@memprofilable('named')
def count(words: list[str]) -> int:
    return len(words)


@memprofilable
async def fetch(url: str) -> bytes:
    return url.encode()


@memprofilable
def numbers(n: int) -> Iterator[int]:
    yield n


class Model:
    @memprofilable
    def forward(self, x: float) -> float:
        return x

    @memprofilable
    @staticmethod
    def static(x: int) -> int:
        return x

    @classmethod
    @memprofilable
    def build(cls, x: int) -> 'Model':
        return cls()

    @memprofilable
    @classmethod
    def build_2(cls, x: int) -> 'Model':
        return cls()

    @property
    @memprofilable
    def size(self) -> int:
        return 1


fetched: Callable[[str], Coroutine[Any, Any, bytes]] = fetch
assert_type(tokenize('a', limit=2), list[str])
assert_type(count(['a']), int)
assert_type(numbers(1), Iterator[int])
assert_type(Model().forward(1.0), float)
assert_type(Model.static(1), int)
assert_type(Model.build(1), Model)
assert_type(Model.build_2(1), Model)
assert_type(Model().size, int)
with memprofilable('sampling'):
    after = tokenize('b')
assert_type(after, list[str])
tokenize(3)  # type: ignore[arg-type]
count()  # type: ignore[call-arg]
memprofilable(3)  # type: ignore[call-overload]
"""


def test_memprofilable_keeps_the_types_of_what_it_marks() -> None:
    pytest.importorskip('mypy')
    Path('typed.py').write_text(TYPES)
    Path('mypy.ini').write_text(
        '[mypy]\nstrict = True\n[mypy-torch.*,composer.*]\nfollow_imports = skip\nignore_missing_imports = True\n'
    )
    print(run(sys.executable, '-m', 'mypy', 'typed.py', env=child_environment(MYPYPATH=str(ROOT))))


def test_the_sdist_holds_the_tests_and_all_that_they_read(checkout: Path) -> None:
    pytest.importorskip('setuptools')
    run(sys.executable, 'setup.py', '-q', 'sdist', '--dist-dir', checkout / 'dist', cwd=checkout)
    with tarfile.open(next((checkout / 'dist').glob('*.tar.gz'))) as archive:
        archive.extractall('unpacked', filter='data')
    sdist = next(Path('unpacked').iterdir()).absolute()
    missing = [
        str(file.relative_to(checkout))
        for folder in ('tests', 'yamls', 'composer_memprof')
        for file in (checkout / folder).rglob('*')
        if file.is_file() and not (sdist / file.relative_to(checkout)).is_file()
    ]
    assert missing == []
    assert all((sdist / name).is_file() for name in ('Makefile', 'README.md', 'LICENSE', '.ruff.toml'))
    collected = run(
        *(
            sys.executable,
            '-m',
            'pytest',
            '--collect-only',
            '-q',
            'tests/schedule/test_schedule.py',
            'tests/simulated_gpu/test_simulated_gpu.py',
        ),
        *('tests/analysis/test_analysis.py', 'tests/project/test_package.py'),
        cwd=sdist,
        env={**child_environment(), 'PYTHONPATH': str(sdist)},
    )
    assert 'test_the_sdist_holds_the_tests' in collected
    information = (sdist / 'PKG-INFO').read_text()
    assert f'Version: {composer_memprof.__version__}\n' in information
    assert 'Project-URL: Source, https://github.com/' in information
    assert 'Description-Content-Type: text/markdown' in information


@pytest.mark.slow
def test_the_quickstart_trains_by_its_name_where_there_is_no_clone(checkout: Path) -> None:
    pytest.importorskip('setuptools')
    installed = Path('installed').absolute()
    run(sys.executable, 'setup.py', '-q', 'build_py', '--build-lib', installed, cwd=checkout)
    assert not list(installed.rglob('*.pyc'))
    Path('empty').mkdir()
    print(
        run(
            *(sys.executable, '-m', 'composer_memprof', 'train', 'quickstart', 'max_duration=2ba'),
            *('model.d_model=16', 'model.n_layers=1', 'model.n_heads=2', 'train_loader.max_bytes=100000'),
            cwd='empty',
            env=child_environment(PYTHONPATH=str(installed)),
        )
    )
    assert [path.name for path in Path('empty').iterdir()] == ['runs']
    assert entries(Path('empty'), 'host_rss')
