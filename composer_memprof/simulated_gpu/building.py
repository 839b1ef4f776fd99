"""Builds the simulated CUDA runtime, once for each torch and set of packages, into a cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Optional

from composer_memprof.simulated_gpu.needed_symbols import needed_symbols

_COMPILER = 'cc'
_ZIGLANG = ('-m', 'ziglang', 'cc', '-target', 'x86_64-linux-gnu.2.17')
_SOURCES = Path(__file__).with_name('runtime')
#: torch, Triton and others look for the driver by this name.
LIBRARY = 'libcuda.so.1'
#: Further names under which programs load what the library has.
_OTHER_NAMES = ('libcuda.so', 'libnvidia-ml.so.1')
#: Status codes of functions that are not simulated: "not supported", or what comes nearest, in each library's header.
_NOT_SUPPORTED = {
    'cublas': 15,
    'cudnn': 3000,
    'cufft': 16,
    'cusolver': 9,
    'cusparse': 10,
    'cuda': 801,
    'cupti': 15,
    'nccl': 5,
    'nvml': 3,
    'cu': 801,
}
#: CUPTI has nothing to trace; torch's profiler then goes on without it.
_FAILS_QUIETLY = ('cupti',)
# What the real libraries do without a device: versions, texts, compilation, tracing and files.
_LEFT_TO_THE_LIBRARIES = (
    *('cudnnGetVersion', 'cudnnGetCudartVersion', 'cudnnGetErrorString', 'cudnnGetLastErrorString', 'cudnnGetProperty'),
    *('cublasLtGetVersion', 'cublasGetVersion', 'cusparseGetErrorString', 'cuFile', 'curand', 'nvrtc'),
    *('ncclGetVersion', 'ncclGetErrorString'),
)


class CannotSimulateError(Exception):
    """A GPU can't be simulated here; the message says why, in one line."""


def library() -> Path:
    """The path of the library for this torch, which is built if it is not in the cache.

    The cache is ``$XDG_CACHE_HOME/composer_memprof`` or ``~/.cache/composer_memprof``.

    Raises:
        CannotSimulateError: on another system than Linux x86-64, without a CUDA build of torch, or without a compiler.
    """
    if sys.platform != 'linux' or platform.machine() != 'x86_64':
        raise CannotSimulateError(
            f'a GPU is simulated on Linux x86-64 only; this is {platform.system()} {platform.machine()}'
        )
    if importlib.util.find_spec('wrapt') is None:
        raise CannotSimulateError("wrapt is not installed: pip install 'composer_memprof[simulate]'")
    try:
        needed = _symbols_needed()
        folder = _cache() / _key(needed)
        if not (folder / LIBRARY).exists():
            _build(folder, needed)
    except (OSError, RuntimeError) as error:
        raise CannotSimulateError(f'the simulated CUDA runtime cannot be built in the cache: {error}') from error
    return folder / LIBRARY


def _cache() -> Path:
    home = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache').absolute()
    if ':' in str(home):
        raise CannotSimulateError(
            f'the cache {str(home)!r} has a colon in its path; set XDG_CACHE_HOME to another folder'
        )
    return home / 'composer_memprof' / 'simulated_gpu'


def _key(needed: set[str]) -> str:
    """Tells apart what the library is made of: the sources, torch's build, and the names that are needed of it."""
    torch = _torch()
    digest = hashlib.sha256(f'{metadata.version("torch")} {torch}'.encode())
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.read_bytes())
    digest.update(Path(__file__).read_bytes())
    digest.update(' '.join(sorted(needed)).encode())
    return f'torch{metadata.version("torch")}-{digest.hexdigest()[:16]}'


def _torch() -> Path:
    """The folder of torch, which is not imported: that takes seconds."""
    found = importlib.util.find_spec('torch')
    if found is None or found.origin is None:
        raise CannotSimulateError('torch is not installed')
    folder = Path(found.origin).parent
    if re.search(r'^cuda\b.*= *None', _text(folder / 'version.py'), re.MULTILINE):
        raise CannotSimulateError(
            f"torch {metadata.version('torch')} is built for the CPU; PyPI's torch for Linux is built for CUDA"
        )
    return folder


def _build(folder: Path, needed: set[str]) -> None:
    headers = _headers()
    sources = sorted(_SOURCES.glob('*.c'))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix='.building-') as temporary:
        built = Path(temporary) / 'built'
        built.mkdir()
        stubs = Path(temporary) / 'not_simulated.c'
        stubs.write_text(_stubs(needed))
        _compile([*sources, stubs], headers, built / LIBRARY, Path(temporary))
        for name in _OTHER_NAMES:
            (built / name).symlink_to(LIBRARY)
        if _has_ziglang():
            _write_compiler(built / _COMPILER)
        _move(built, folder)


def _move(built: Path, folder: Path) -> None:
    """Put a finished build in its place. Another process may have been faster, and a cleaner may have left a part."""
    try:
        built.rename(folder)
    except OSError:
        if not (folder / LIBRARY).exists():
            shutil.rmtree(folder, ignore_errors=True)
            built.rename(folder)


def _compile(sources: Iterable[Path], headers: list[Path], library: Path, temporary: Path) -> None:
    """Compile with the first compiler that can."""
    settings = [f'-DCUDA_VERSION={_cuda_version(headers)}', *(f'-I{folder}' for folder in (*headers, _SOURCES))]
    options = ['-shared', '-fPIC', '-O1', '-w', *settings, f'-Wl,-soname,{LIBRARY}', '-lpthread', '-ldl']
    caches = {f'ZIG_{which}_CACHE_DIR': str(temporary / 'zig') for which in ('GLOBAL', 'LOCAL')}
    message = "there is no C compiler; pip install 'composer_memprof[simulate]' brings one"
    for compiler in _compilers():
        command = [*compiler, *map(str, sources), *options, '-o', str(library)]
        done = subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True, check=False)
        if not done.returncode:
            return
        message = f'the simulated CUDA runtime does not compile: {" ".join(done.stderr.split())[:500]}'
    raise CannotSimulateError(message)


def _compilers() -> Iterator[list[str]]:
    """The user's, the system's, and ziglang's."""
    for words in (shlex.split(os.environ.get('CC', '')), ['cc']):
        if words and shutil.which(words[0]):
            yield words
    if _has_ziglang():
        yield [sys.executable, *_ZIGLANG]


def _has_ziglang() -> bool:
    return importlib.util.find_spec('ziglang') is not None


def _write_compiler(path: Path) -> None:
    command = shlex.join([sys.executable, *_ZIGLANG])
    # of the simulated process, which the compiler is none of
    path.write_text(f'#!/bin/sh\nunset LD_PRELOAD PYTHONPATH\nexec {command} "$@"\n')
    path.chmod(0o755)


def compiler_for_triton(library: Path) -> Optional[Path]:
    """A compiler in one file, beside the library, where Triton would find none, if ``ziglang`` is installed."""
    if os.environ.get('CC') or shutil.which('gcc') or shutil.which('clang'):
        return None
    compiler = library.with_name(_COMPILER)
    return compiler if compiler.exists() else None


def _headers() -> list[Path]:
    """The folders of CUDA's headers, which NVIDIA's packages and Triton bring along."""
    packages = _torch().parent
    headers = {found.parent for found in packages.glob('nvidia/*/include/driver_types.h')}
    if not headers:
        version = metadata.version('torch')
        raise CannotSimulateError(
            f"torch {version} was installed without NVIDIA's packages; PyPI's torch for Linux has them: pip install torch"
        )
    # CUDA 12's packages lack some headers that Triton has.
    return [*sorted(headers), packages / 'triton/backends/nvidia/include']


def _cuda_version(headers: Iterable[Path]) -> str:
    """As CUDA writes it: 12060 for 12.6."""
    for folder in headers:
        found = re.search(r'#define\s+CUDART_VERSION\s+(\d+)', _text(folder / 'cuda_runtime_api.h'))
        if found is not None:
            return found[1]
    raise CannotSimulateError("the version of CUDA is not in the headers of NVIDIA's packages")


def _text(path: Path) -> str:
    return path.read_text(errors='replace') if path.exists() else ''


def _symbols_needed() -> set[str]:
    """The names of CUDA's functions that the installed packages' libraries call."""
    try:
        version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
        return needed_symbols(_torch() / 'lib', _cache() / f'symbols-{version}', _is_simulated)
    except ImportError:
        raise CannotSimulateError("pyelftools is not installed: pip install 'composer_memprof[simulate]'") from None


def _is_simulated(name: str) -> bool:
    return _library_of(name) is not None and not name.startswith(_LEFT_TO_THE_LIBRARIES)


def _library_of(name: str) -> Optional[str]:
    """The prefix of the function's library, such as ``cublas``; None if it is not CUDA's."""
    for prefix in _NOT_SUPPORTED:
        rest = name.removeprefix(prefix)
        if rest != name and rest[:1].isupper():
            return prefix
    return None


def _stubs(names: Iterable[str]) -> str:
    """C functions that fail, most of them with their name. They are weak: the sources' own come before them."""
    lines = ['__attribute__((visibility("hidden"))) int not_simulated(const char *function, int status);']
    for name in sorted(names):
        status: object = _NOT_SUPPORTED[_library_of(name) or 'cu']
        if not name.startswith(_FAILS_QUIETLY):
            status = f'not_simulated("{name}", {status})'
        lines.append(f'__attribute__((weak)) int {name}() {{ return {status}; }}')
    return '\n'.join(lines) + '\n'
