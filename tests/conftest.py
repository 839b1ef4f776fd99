"""Real parts for the tests: a small training, commands on simulated GPUs, a browser, and an S3 API on loopback."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

from composer_memprof.artifacts.reading.manifest import Entry, find_manifests, read_manifest
from composer_memprof.simulated_gpu.building import CannotSimulateError
from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with
from tests.support.without_transformers import leave_transformers_to_those_who_import_it

leave_transformers_to_those_who_import_it()

#: The parts of the small training.
_TRAINING = ('FEATURES', 'Noise', 'Regression', 'loader', 'make_trainer', 'train')


def __getattr__(name: str) -> Any:
    """Composer is not imported for the process that only hands out tests."""
    if name not in _TRAINING:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module('tests.support.small_training'), name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a test that waits for another process leaves its core to others."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """A worker of pytest-xdist that ends by a crash says only that it crashed; say by which signal."""
    process = getattr(node.gateway._io, 'popen', None)
    if error and process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            print(f'\n{node.gateway.id} ended with {process.wait(5)} (minus the number of the signal)', file=sys.stderr)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Until ``condition`` holds; another process may take its time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, 'it did not come about in time'
        time.sleep(0.05)


def entries(folder: Path, kind: str = '') -> list[Entry]:
    """The last line of each path in all manifests under ``folder``."""
    found = [entry for manifest in find_manifests(folder) for entry in read_manifest(manifest)]
    return [entry for entry in found if not kind or entry.kind == kind]


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


#: Packages whose adapters are in ``composer_memprof/loop``.
_OPTIONAL = ('transformers', 'lightning')


class _Everywhere:
    """For the examples in the package's docstrings too, which lie outside of this folder."""

    def pytest_ignore_collect(self, collection_path: Path) -> Optional[bool]:
        """Leave out the adapter of a package that is not installed."""
        package = collection_path.stem.removeprefix('for_')
        return True if package in _OPTIONAL and importlib.util.find_spec(package) is None else None

    @pytest.fixture(autouse=True)
    def in_an_empty_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        return tmp_path


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Everywhere())
    hands_out_tests = config.getoption('numprocesses', None) and not hasattr(config, 'workerinput')
    if not hands_out_tests and importlib.util.find_spec('composer'):
        importlib.import_module('tests.support.small_training')
        # What the libraries have made by now stays to the end. Neither the garbage collector nor a search for what keeps
        # a tensor goes through it again: half of each small training's time would go there.
        gc.collect()
        gc.freeze()


def _chromium() -> str:
    names = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and shutil.which('apt-get') and os.geteuid() == 0:
        for command in (['apt-get', 'update'], ['apt-get', 'install', '-y', '--no-install-recommends', 'chromium']):
            subprocess.run(command, capture_output=True, timeout=600, check=False)
        found = shutil.which('chromium')
    if found is None:
        pytest.skip('there is no Chromium here, and none could be installed')
    return found


@pytest.fixture(scope='module')
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip('playwright.sync_api')
    arguments = ['--no-sandbox'] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=_chromium(), args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page that is a file. None may ask the network for anything, and nothing may go wrong unseen."""
    asked: list[str] = []
    wrong: list[str] = []
    contexts = []

    def open_page(path: Path, width: int = 1400) -> Any:
        context = browser.new_context(viewport={'width': width, 'height': 900}, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on('request', lambda request: asked.append(request.url) if request.url != path.as_uri() else None)
        page.on('pageerror', lambda error: wrong.append(str(error)))
        page.on('console', lambda message: wrong.append(message.text) if message.type == 'error' else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert ([url for url in asked if not url.startswith('data:')], wrong) == ([], [])


def until(page: Any, condition: str, act: Callable[[], None] = lambda: None) -> None:
    """Act until an expression is true. Playwright's own wait evaluates in the page, which its policy forbids."""
    for _ in range(15):
        act()
        for _ in range(10):
            if page.evaluate(condition):
                return
            page.wait_for_timeout(100)
    raise AssertionError(condition)


@pytest.fixture(scope='session')
def s3_endpoint() -> Iterator[str]:
    """A real S3 API on loopback."""
    moto_server = pytest.importorskip('moto.server')
    server = moto_server.ThreadedMotoServer(ip_address='127.0.0.1', port=0)
    server.start()
    host, port = server.get_host_and_port()
    with _descriptions_of_services_read_once():
        yield f'http://{host}:{port}'
    server.stop()


@contextlib.contextmanager
def _descriptions_of_services_read_once() -> Iterator[None]:
    """Each client reads a megabyte of JSON that never changes: a third of the time that a client takes to be made."""
    loader = pytest.importorskip('botocore.loaders').JSONFileLoader
    read = functools.cache(lambda path: load_file(loader(), path))
    load_file = loader.load_file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, 'load_file', lambda self, path: read(path))
        yield


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An s3fs filesystem with an empty bucket ``runs``; the environment has the credentials, as on a cluster."""
    s3fs = pytest.importorskip('s3fs')
    for name, value in s3_environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem = s3fs.S3FileSystem(skip_instance_cache=True)
    for _ in range(5):
        if not filesystem.exists('runs'):
            break
        with contextlib.suppress(OSError):  # an uploader of a test that ended may still add an object
            filesystem.rm('runs', recursive=True)
    filesystem.mkdir('runs')
    yield filesystem
    s3fs.S3FileSystem.clear_instance_cache()


def s3_environment(endpoint: str) -> dict[str, str]:
    return {
        'AWS_ACCESS_KEY_ID': 'loopback-key',
        'AWS_SECRET_ACCESS_KEY': 'loopback-secret',
        'AWS_ENDPOINT_URL': endpoint,
        'AWS_DEFAULT_REGION': 'us-east-1',
    }


def child_environment(**more: str) -> dict[str, str]:
    """For child processes: this checkout's package, one rank."""
    root = str(Path(__file__).parent.parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(('RANK', 'WORLD', 'LOCAL_'))}
    return {**kept, 'PYTHONPATH': root, **more}


def simulated_gpu(gpu: str = 'h100-80gb', **settings: Any) -> dict[str, str]:
    """The environment of a process on a simulated GPU; skips the test where none can be simulated."""
    try:
        return environment_with(find_device(gpu), **settings)
    except CannotSimulateError as reason:
        pytest.skip(str(reason))


def run_command_that_simulates(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``composer-memprof`` with the arguments; skips the test where no GPU can be simulated."""
    simulated_gpu()
    command = [sys.executable, '-m', 'composer_memprof', *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
