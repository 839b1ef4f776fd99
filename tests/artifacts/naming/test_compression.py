"""Codecs: chosen by name in every callback, read wherever an artifact is read."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_memprof import HostRSS, MemorySnapshot, TorchProfiler, VizTracer
from composer_memprof.analysis.function_growth import read_function_growth
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError, load_plain
from composer_memprof.artifacts.naming.compression import CODECS, DamagedError, compress_file, open_for_read
from composer_memprof.callbacks.registry import CALLBACKS
from tests.conftest import child_environment, entries, train
from tests.support.processes import warm_python

SOON = {'skip': '1ba', 'active': '2ba'}


def needs_zstd(codec: str) -> None:
    if codec == 'zstd':
        pytest.importorskip('zstandard')


@pytest.mark.parametrize('make', list(CALLBACKS.values()), ids=lambda make: make.__name__)
def test_each_callback_writes_its_main_file_with_zstd(make: Any) -> None:
    needs_zstd('zstd')
    train(make(schedule=SOON, compress='zstd'), batches=6)
    written = [entry.path for entry in entries(Path('test-run')) if entry.status == 'saved']
    assert any(path.endswith('.zst') for path in written)
    assert not any(path.endswith('.gz') for path in written)


@pytest.mark.parametrize(('old', 'new'), [(True, 'gzip'), (False, 'none')])
def test_true_and_false_are_still_read(old: bool, new: str) -> None:
    for folder, value in (('old', old), ('new', new)):
        train(HostRSS(schedule=SOON, compress=value, folder=folder), batches=4)
    assert [entry.path for entry in entries(Path('old'))] == [entry.path for entry in entries(Path('new'))]


@pytest.mark.parametrize('make', list(CALLBACKS.values()), ids=lambda make: make.__name__)
@pytest.mark.parametrize('value', ['xz', None, 1])
def test_an_unknown_codec_is_refused_in_a_line(make: Any, value: Any) -> None:
    with pytest.raises(ValueError, match='compress must be none, gzip or zstd') as error:
        make(compress=value)
    assert repr(value) in str(error.value) and '\n' not in str(error.value)


def test_a_codec_whose_package_is_missing_is_refused_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'zstandard', None)
    with pytest.raises(ValueError, match=r"pip install 'composer_memprof\[zstd\]'"):
        HostRSS(compress='zstd')
    path = Path('rank0.pickle.zst')
    path.write_bytes(b'\x28\xb5\x2f\xfd')
    with pytest.raises(SnapshotError, match=r"pip install 'composer_memprof\[zstd\]'"):
        load_plain(path)


def test_two_codecs_for_one_file_are_refused() -> None:
    with pytest.raises(ValueError, match=r"compress='zstd' and use_gzip=True differ; give one of them"):
        pytest.importorskip('zstandard')
        TorchProfiler(compress='zstd', use_gzip=True)
    with pytest.raises(ValueError, match=r"compress='gzip' and filename='{rank}.json.zst' differ"):
        VizTracer(compress='gzip', filename='{rank}.json.zst')
    assert TorchProfiler(compress='gzip', use_gzip=True).output.compress == 'gzip'


@pytest.mark.parametrize('codec', ['gzip', 'zstd'])
def test_inspect_and_report_read_each_codec(codec: str) -> None:
    needs_zstd(codec)
    train(HostRSS(compress=codec), MemorySnapshot(schedule=SOON, compress=codec), batches=6)
    for name in ('host_rss.summary', 'memory_snapshot.summary'):  # or only these would be read
        for entry in entries(Path('test-run'), name):
            next(Path('test-run').rglob(entry.path)).unlink()
    for command in ('inspect', 'report'):
        run = warm_python.run(
            [sys.executable, '-m', 'composer_memprof', command, 'test-run', '--json'],
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        told = json.dumps(json.loads(run.stdout))
        assert 'peak' in told and 'could not' not in run.stderr


@pytest.mark.parametrize('codec', CODECS, ids=lambda codec: codec.name)
def test_a_damaged_file_is_an_error_of_one_line(codec: Any) -> None:
    needs_zstd(codec.name)
    Path('plain').write_bytes(b'\x80\x04N.' * 1000)
    path = Path(f'rank0.pickle{codec.suffix}')
    compress_file(Path('plain'), path, codec)
    assert open_for_read(path).read() == b'\x80\x04N.' * 1000
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + bytes(255 - byte for byte in whole[8:]))
    with pytest.raises(SnapshotError) as error:
        load_plain(path)
    assert '\n' not in str(error.value)
    with pytest.raises((SnapshotError, OSError)):
        read_function_growth(path)


@pytest.mark.parametrize('codec', CODECS, ids=lambda codec: codec.name)
def test_a_file_that_is_cut_short_is_not_read_as_whole(codec: Any) -> None:
    needs_zstd(codec.name)
    Path('plain').write_bytes(os.urandom(300_000))
    path = Path(f'rank0.jsonl{codec.suffix}')
    compress_file(Path('plain'), path, codec)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises((OSError, EOFError, DamagedError)), open_for_read(path) as file:
        file.read()
