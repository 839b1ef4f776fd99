"""Libraries of other packages than torch, which call functions of CUDA that torch does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from composer_memprof.simulated_gpu.needed_symbols import needed_symbols

pytestmark = pytest.mark.slow

pytest.importorskip('ziglang')
pytest.importorskip('elftools')

SOURCE = """
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active);
int cuNoOtherLibraryCallsThis(int number);
int cuOfAnotherPackage(void);
int nvlink_state(void) { return nvmlDeviceGetNvLinkState(0, 0, 0); }
int strange(void) { return cuNoOtherLibraryCallsThis(1) + cuOfAnotherPackage(); }
"""
OTHER = 'int cuOfAnotherPackage(void) { return 7; }'
SCRIPT = """
import ctypes, os
other = ctypes.CDLL('packages/site-packages/other/libother.so', mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL('packages/site-packages/fast/libfast.so.1', mode=os.RTLD_NOW)
print(library.nvlink_state(), library.strange())
"""


def library(name: str, source: str) -> Path:
    path = Path('packages/site-packages') / name
    path.parent.mkdir(parents=True)
    path.with_suffix('.c').write_text(source)
    compiler = [sys.executable, '-m', 'ziglang', 'cc', '-target', 'x86_64-linux-gnu.2.17', '-shared', '-fPIC']
    # what nobody defines is found when the library is loaded
    options = ['-Wl,-z,lazy', '-Wl,-z,undefs']
    subprocess.run([*compiler, *options, str(path.with_suffix('.c')), '-o', str(path)], check=True)
    return path


def test_any_package_finds_the_functions_that_it_needs_and_those_not_simulated_fail_with_their_name() -> None:
    library('fast/libfast.so.1', SOURCE)
    library('other/libother.so', OTHER)
    Path('script.py').write_text(SCRIPT)
    environment = {
        **os.environ,
        'PYTHONPATH': str(Path('packages/site-packages').absolute()),
        'XDG_CACHE_HOME': str(Path('cache').absolute()),
    }
    command = [sys.executable, '-m', 'composer_memprof', 'simulate', '--', 'python', 'script.py']
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert ran.stdout.splitlines()[0] == '3 808', ran.stderr
    assert 'simulated GPU: nvmlDeviceGetNvLinkState is not simulated; what called it fails' in ran.stderr
    assert 'simulated GPU: cuNoOtherLibraryCallsThis is not simulated' in ran.stderr
    assert 'cuOfAnotherPackage' not in ran.stderr, 'another package has it'


def test_a_library_is_read_again_once_a_package_was_installed_or_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    path = library('fast/libfast.so.1', SOURCE).absolute()
    site, empty = path.parents[1], Path('empty').absolute()
    empty.mkdir()
    monkeypatch.setattr(sys, 'path', [str(site)])

    def needed() -> set[str]:
        return needed_symbols(empty, Path('cache'), lambda name: name.startswith('cu'))

    assert needed() == {'cuNoOtherLibraryCallsThis', 'cuOfAnotherPackage'} == needed()
    library('other/libother.so', OTHER)
    assert needed() == {'cuNoOtherLibraryCallsThis'}
    path.unlink()
    path.parent.rename(site / 'renamed')
    assert needed() == set()
