"""Untrusted snapshots: nothing in them runs, none is read in part, and none uses up the machine's memory."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import SnapshotError, load_snapshot
from tests.conftest import child_environment
from tests.support.recordings.damage import a_whole_snapshot, damaged, mangled
from tests.support.recordings.snapshots import FRAME, event, plain, saved, segment


class Attack:
    def __reduce__(self) -> Any:
        return os.system, ('touch pwned',)


@pytest.mark.parametrize('content', [Attack(), {'device_traces': [[Attack()]], 'segments': []}, {'x': len}, os.getcwd])
@pytest.mark.parametrize('zipped', [False, True])
def test_a_pickle_that_names_anything_is_refused_and_does_nothing(content: Any, zipped: bool) -> None:
    path = saved(content)
    if zipped:
        path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(SnapshotError, match='names'):
        load_snapshot(path)
    assert not Path('pwned').exists()


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        ([1, 2], ['list']),
        ({'segments': []}, ['device_traces']),
        (plain(event(['alloc'], 1, 1)), ['action', 'list']),  # type: ignore[arg-type]
        (plain(event('alloc', 1, 2**63)), ['size must be', 'not 9223372036854775808']),
        (plain(event('alloc', 1, 2**9999)), ['size must be', 'not a number of more than']),
        (plain(event('alloc', 1, 2**62), event('alloc', 2, 2**62)), ['size', 'add up']),
        (plain(event('alloc', 1, -1)), ['size must be', 'not -1']),
        (plain(event('alloc', -5, 1)), ['addr must be', 'not -5']),
        (plain(event('alloc', 1, 1.5)), ['size must be', 'not 1.5']),  # type: ignore[arg-type]
        (plain(event('alloc', 1, True)), ['size must be', 'not True']),
        (plain(event('alloc', 1, 1, frames='nowhere')), ['stack']),
        (plain(event('alloc', 1, 1, frames=['nowhere'])), ['frame']),
        (plain(event('alloc', 1, 1, frames=[{**FRAME, 'name': 3}])), ['frames']),
        (plain(event('alloc', 1, 1, frames=[{**FRAME, 'more': ((), ())}])), ['frame']),
        (plain(event('alloc', 1, 1, frames=[{**FRAME, 'line': 'x'}])), ['line must be', "not 'x'"]),
        (plain({**event('alloc', 1, 1), 'module': 3}), ['module', 'not 3']),
        (plain(segments=[{'device': 0, 'address': 1, 'total_size': 1}]), ['block']),
        (plain(segments=[3]), ['segment']),
        (plain(segments=[segment((1, 1), device=-1)]), ['device must be', 'not -1']),
        ({**plain(), 'composer_memprof': []}, ['composer_memprof']),
        (plain(phases=[[1, 2]]), ['phases']),
        (plain(phases=[[9, 0, 'forward'], [1, 0, 'backward']]), ['phases', 'order']),
        (plain(phases=[[1, 0, 3]]), ['phases']),
        (plain(modules=[[1, 2]]), ['module', 'not 2']),
        (plain(tensors=[[0, 1, 1, 'leak', 'x']]), ['category', "'leak'"]),
        (plain(tensors=[[0, -1, 1, 'input', 'x']]), ['address must be', 'not -1']),
        (plain(oom=3), ['oom']),
        (plain(oom={'free': -1}), ['free must be', 'not -1']),
        (plain(error=3), ['error']),
        (plain(rank='first'), ['rank']),
    ],
)
def test_what_is_no_snapshot_is_one_line(content: Any, words: list[str]) -> None:
    with pytest.raises(SnapshotError) as caught:
        load_snapshot(saved(content))
    assert '\n' not in str(caught.value)
    assert all(word in str(caught.value) for word in ['x.pickle', *words]), str(caught.value)


@pytest.mark.parametrize(
    'content', [b'', b'\x80', b'\x1f\x8b', b'hello', b'\x80\x04N.', gzip.compress(b'', mtime=0), b'PK\x03\x04']
)
def test_a_file_of_another_kind_is_one_line(content: bytes) -> None:
    Path('x').write_bytes(content)
    with pytest.raises(SnapshotError) as caught:
        load_snapshot(Path('x'))
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('line', [-1, 2**64 - 1])
def test_a_frame_without_a_line_is_read_as_torch_writes_it(line: int) -> None:
    compiled = {'filename': '<eval_with_key>.0', 'line': line, 'name': 'forward'}
    (holder,) = report_on(load_snapshot(saved(plain(event('alloc', 512, 8, [compiled]))))).devices[0].peak.holders
    assert str(holder.frames[0]) == '<eval_with_key>.0 forward'


@pytest.mark.parametrize('passing', ['simulated_gpu/values/keys.py', 'recorders/dispatch.py', 'simulation/observer.py'])
def test_frames_of_a_call_that_this_package_passed_on_are_left_out(passing: str) -> None:
    files = ['/x/torch/_ops.py', f'/x/composer_memprof/{passing}', '/x/torch/_ops.py', '/home/me/train.py']
    stack = [{'filename': file, 'line': 1, 'name': 'f'} for file in files]
    snapshot = load_snapshot(saved(plain(event('alloc', 512, 8, stack))))
    assert [frame.filename for frame in snapshot.stacks[1]] == files[2:]


def test_events_of_an_unknown_action_are_left_out_and_named() -> None:
    content = plain(
        event('alloc', 512, 8),
        *(event('pool\x1b[2J', 0, 99) for _ in range(2)),
        event('user_defined', 0, 0),
        *(event(f'new{number}', 0, 99) for number in range(9)),
    )
    report = report_on(load_snapshot(saved(content)))
    assert report.devices[0].peak.bytes == 8
    (note,) = [note for note in report.notes if 'ignored' in note]
    assert note == (
        'Events of an action that is not known here were ignored: '
        "2 of 'pool?[2J', 1 of 'new0', 1 of 'new1', 1 of 'new2', 1 of 'new3' and 5 others."
    )


@pytest.mark.parametrize('protocol', [0, 1, 2, 3, 4, 5])
def test_each_cut_of_a_snapshot_is_refused_and_the_whole_is_read(protocol: int) -> None:
    whole = a_whole_snapshot(protocol)
    Path('x').write_bytes(whole)
    assert len(load_snapshot(Path('x')).devices[0].action) == 24
    for length in range(0, len(whole), 7):
        Path('x').write_bytes(whole[:length])
        with pytest.raises(SnapshotError):
            load_snapshot(Path('x'))


def test_two_thousand_damaged_snapshots_are_read_whole_or_refused() -> None:
    random_ = random.Random(0)
    path = Path('damaged')
    wholes = [a_whole_snapshot(protocol) for protocol in (2, 4)]
    read = 0
    for number in range(2000):
        path.write_bytes(mangled(random_) if number % 3 == 0 else damaged(wholes[number % 2], random_))
        try:
            snapshot = load_snapshot(path, limit_memory=True)
        except SnapshotError as error:
            assert '\n' not in str(error)
        else:
            read += 1
            json.dumps(asdict(report_on(snapshot)))
    assert 0 < read < 2000


# -- pickles that are larger than they look -----------------------------------------------------------------------


def _nested(depth: int) -> bytes:
    return b'\x80\x04' + b']' * depth + b'a' * (depth - 1) + b'.'


def _zeros() -> bytes:
    """A gigabyte of zeros in one megabyte."""
    packer = zlib.compressobj(9, wbits=31)
    piece = bytes(1 << 20)
    return packer.compress(b'\x80\x04') + b''.join(packer.compress(piece) for _ in range(1024)) + packer.flush()


def _empty_dicts() -> bytes:
    """200 million of them, zipped."""
    return gzip.compress(b'\x80\x04(' + b'}' * (200 << 20) + b'l.', 1)


def _frames_in_themselves() -> bytes:
    return pickle.dumps(plain(event('alloc', 1, 1, (lambda a: a.append(a) or a)([]))), 4)


#: Each is made by its test: zipping takes seconds.
BOMBS: dict[str, Callable[[], bytes]] = {
    'deep nesting': lambda: _nested(1_000_000),
    'a memo index of two billion': lambda: b'\x80\x02}r\xff\xff\xff\x7f.',
    'a number of two gigabytes': lambda: b'\x80\x04\x8b\xff\xff\xff\x7f' + b'\x01' * 100 + b'.',
    'a text of 8 exabytes': lambda: b'\x80\x04\x8d' + b'\xff' * 7 + b'\x7f' + b'x.',
    'a buffer of 64 gigabytes': lambda: b'\x80\x05\x96' + (64 << 30).to_bytes(8, 'little') + b'x.',
    'a frame of 8 exabytes': lambda: b'\x80\x04\x95' + b'\xff' * 7 + b'\x7f' + b'}.',
    'zeros, zipped': _zeros,
    'empty dicts, zipped': _empty_dicts,
    'a list in itself': lambda: b'\x80\x04]\x94h\x00a.',
    'frames in themselves': _frames_in_themselves,
}


@pytest.mark.parametrize('name', BOMBS)
def test_a_bomb_is_refused_in_one_line_and_little_memory(name: str) -> None:
    Path('bomb').write_bytes(BOMBS[name]())

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    code = (
        'import os, resource, sys, composer_memprof.cli as cli, composer_memprof.report.text.terminal.snapshot_tables, '
        'composer_memprof.analysis.memory.snapshot_report\n'
        'sys.argv = ["x", "inspect", "bomb"]\n'
        'here = os.getpid()\n'
        'before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n'
        'try:\n    cli.main()\n'
        'finally:\n'
        '    most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))\n'
        '    if os.getpid() == here: print(most - before)\n'
    )
    began = time.monotonic()
    run = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        env=child_environment(),
        preexec_fn=limit,
        timeout=120,
    )
    assert run.returncode == 1, run.stderr
    assert len(run.stderr.splitlines()) == 1, run.stderr
    assert 'bomb is not a memory snapshot' in run.stderr
    assert int(run.stdout) < 2 << 20, 'less than two gigabytes'
    assert time.monotonic() - began < 60


def test_the_limit_on_memory_is_lifted_after_reading() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    for content in (plain(), [1]):
        try:
            load_snapshot(saved(content), limit_memory=True)
        except SnapshotError:
            pass
        assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_the_process_of_a_library_caller_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, 'setrlimit', lambda *_: pytest.fail('the process was limited'))
    load_snapshot(saved(plain()))


def test_a_key_that_takes_years_to_hash_is_given_up_in_one_line() -> None:
    path = Path('bomb.pickle')
    path.write_bytes(b'\x80\x04})' + b'2\x86' * 200 + b'K\x01s.')  # {a tuple of itself twice, 200 deep: 1}
    code = (
        'import composer_memprof.analysis.snapshot.limits as limits; limits._SECONDS = 2.0; '
        "from composer_memprof.cli import app; app(['inspect', 'bomb.pickle'])"
    )
    run = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=60, env=child_environment()
    )
    assert run.returncode == 1
    assert run.stderr.count('\n') == 1 and 'bomb.pickle: reading took longer than 2 s and was stopped' in run.stderr
