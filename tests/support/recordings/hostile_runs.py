"""Folders of runs as an enemy would leave them: damaged, forged, and of files that are no files.

Half of them are made from a run with all callbacks, so that each kind of file that a run leaves today is damaged.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import socket
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from composer_memprof.artifacts.reading.attempts import own_attempt
from tests.benchmarks.callbacks.every_callback import every_callback
from tests.conftest import make_trainer
from tests.support.made_up_runs import run_of, write_files
from tests.support.recordings.damage import VALUES, damaged, mangled, the_content

#: Names that lead elsewhere, or that no terminal shows.
_NAMES = [
    *(
        '',
        '.',
        '..',
        '../x',
        '/etc/hostname',
        'a\x00b',
        '\x1b[2J',
        'x' * 300,
        'x' * 9000,
        'y/' * 3000,
        '\udcff',
        '\u202e.nib',
    ),
    *('rank0.manifest.jsonl', 'report.html', '~/x', '{batch}', 'CON', '-rf', 'file:///tmp/x', 'memory://x/y', 's3:/b'),
]
#: Texts that act where they are shown unchanged: in a page, a terminal, a format string. No page may have HOSTILE_IN_PAGE.
_ACTING = [
    *(
        '<hostile>',
        '</script><hostile>',
        '"><hostile>',
        "'-<hostile>-'",
        '<!--<hostile>',
        '" onmouseover="hostile()" x="',
    ),
    *(
        '\x1b]8;;http://x\x07',
        '\x1b[31m',
        '\x9b2J',
        '\r',
        'a\nb',
        '\t',
        '\b',
        '\u200b',
        '\u2066',
        '\u2028',
        '\x85',
        '\ufeff',
    ),
    *(
        '{0}',
        '%s',
        '{batch.__class__}',
        '[red]x[/red]',
        '[/]',
        ':bomb:',
        '$(touch ran)',
        '`touch ran`',
        '=cmd()',
        'javascript:x',
    ),
]
HOSTILE_IN_PAGE = ('<hostile', 'onmouseover="hostile')
_NUMBERS = [float('inf'), float('-inf'), 1e308, -1e308, 5e-324, -0.0, 10**400, -1, '1', '0x7', 10**18]
_VALUES = [*VALUES, *_NAMES, *_ACTING, *_NUMBERS]
#: What the notes of a snapshot may have beside the_content()'s.
_NOTES = {
    'keepers': [[64, 'cached by the attribute cache of lib.py:27 Cache'], [128, 'a closure']],
    'sources': [['train.py', 7, 'y = net(x)'], ['lib.py', 27, 'cache.append(y)']],
    'whole': [['embedding', 1 << 20], ['head', 7]],
    'beside': [['the attribute averages of callbacks.py:3 Ema', 1 << 20]],
    'rss': [[0, 1 << 20], [15, 2 << 20]],
    'known_before': 7,
    'max_entries': 20,
    'memory': [1 << 30, 1 << 30],
    'precision': 'amp_bf16',
    'evaluation_graph': 'net.0',
    'error': 'OutOfMemoryError: x',
    'rank': 0,
    'simulated': 'a100-40gb',
    'version': 2,
}
_REMOTES = [
    None,
    'memory://hostile/x',
    'file:///tmp/hostile/x',
    'memory://',
    'nowhere://x',
    'memory://a@b:c/d',
    '\udcff',
]
_STATUSES = ['open', 'saved', 'handed_over', 'uploaded', 'failed', 'removed', 'skipped', 'exploded']
_HUGE = 20 << 30
#: What stands in a file's name in place of ``rank``.
_RANKS = [
    *(
        b'\xff\xfe',
        b'\x1b[2Jrank',
        b'rank rank',
        b'rank-',
        b'rank99999999999999999999',
        b'rank\xd9\xa1',
        b'<hostile>rank',
    ),
    *(b'rank\n', b'\xe2\x80\xaerank', b'[red]rank', b'.rank'),
]
#: A config of which each part names code to run, so that damage leaves some of it.
_CONFIG = """model: {name: os.system, command: touch ran}
train_loader: {name: subprocess.run, args: [touch, ran]}
optimizer: {name: os.getcwd}
callbacks: {os.system: {command: touch ran}, shutil.rmtree: {path: run}}
max_duration: 1ba
"""
_CONFIGS = [
    'a: &a [x, x]\n'
    + ''.join(f'{b}: &{b} [*{a}, *{a}, *{a}]\n' for a, b in zip('abcdefghijklmnopqrstuvw', 'bcdefghijklmnopqrstuvwx')),
    'model: ${model}\ntrain_loader: {name: os.getcwd}\nmax_duration: 1ba\n',
    'model: !!python/object/apply:os.system [touch ran]\n',
    '{' * 5000,
    '[' * 200_000,
    '- ' * 100_000,
    'model: {name: "' + 'x.' * 5000 + '"}\ntrain_loader: text_files\nmax_duration: 1ba\n',
    '- 1\n- 2\n',
    '',
]


@functools.cache
def real_run() -> dict[str, bytes]:
    """The files of a run with all callbacks, but for the largest, by their paths."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        trainer = make_trainer(*every_callback(20, folder=f'{folder}/memprof'), batches=22)
        trainer.fit()
        trainer.close()
        files = [path for path in Path(folder).rglob('*') if path.is_file() and path.stat().st_size < 1 << 19]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(files)}


def hostile_run(folder: Path, seed: int) -> Path:
    """The folder of a run, damaged as ``seed`` says: of a real one, or of a made-up one of two ranks."""
    random_ = random.Random(seed)
    if random_.random() < 0.5:
        for name, content in real_run().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for path in folder.rglob('*.pickle'):
            path.write_bytes(_snapshot(random_))
    else:
        _make_up_run(folder, random_)
    for _ in range(random_.randint(1, 3)):
        with contextlib.suppress(OSError):  # a file that an earlier harm has made no file can't be harmed again
            random_.choice(_HARMS)(folder, random_)
    return folder


def _make_up_run(folder: Path, random_: random.Random) -> None:
    run_of(folder, 2)
    for rank in range(2):
        name = f'rank{rank}.9.memory_snapshot.pickle'
        write_files(folder, rank, {'memory_snapshot': (name, '')})
        (folder / name).write_bytes(_snapshot(random_))
    line = json.dumps({'batch': 1, 'total': 0.5, 'seconds': {'forward': 0.1}})
    write_files(folder, 0, {'step_times': ('rank0.0.step_times.jsonl', f'{line}\n' * 3)}, status='open')
    write_files(folder, 0, {'config': ('config.yaml', _CONFIG)})
    for rank in range(2):
        with open(folder / f'rank{rank}.manifest.jsonl', 'a') as manifest:
            manifest.write(own_attempt(rank).as_line())


def _snapshot(random_: random.Random) -> bytes:
    content = the_content()
    content['composer_memprof'] = {**content['composer_memprof'], **_NOTES}
    return mangled(random_, content, _VALUES)


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < 1 << 22


def _any_file(folder: Path, random_: random.Random, pattern: str = '*') -> Path:
    found = sorted(path for path in folder.rglob(pattern) if path.is_file())
    return random_.choice(found) if found else folder / 'none'


def _forge_a_line(folder: Path, random_: random.Random) -> None:
    manifest = _any_file(folder, random_, '*.manifest.jsonl')
    if not _is_small(manifest):
        return
    lines = manifest.read_text(errors='replace').splitlines()
    try:
        entry = json.loads(random_.choice(lines))
        entry[random_.choice(sorted(entry))] = random_.choice(_VALUES)
        if random_.random() < 0.5:
            entry['path'] = random_.choice([*_NAMES, *_ACTING])
        if random_.random() < 0.5:
            entry['remote'], entry['status'] = random_.choice(_REMOTES), random_.choice(_STATUSES)
    except (IndexError, ValueError, TypeError, RecursionError):
        return
    with open(manifest, 'a') as file:
        file.write(_as_json(entry) + '\n')


def _forge_an_attempt(folder: Path, random_: random.Random) -> None:
    manifest = _any_file(folder, random_, '*.manifest.jsonl')
    if not _is_small(manifest):
        return
    line = json.loads(own_attempt(0).as_line())
    keys = [*line['attempt'], 'ended', 'end', 'failed', 'error', 'line', 'batch']
    for _ in range(random_.randint(1, 3)):
        line['attempt'][random_.choice(keys)] = random_.choice([*_VALUES, 'killed', 'failed', '9999-01-01', 7])
    with open(manifest, 'a') as file:
        file.write(_as_json(line) + '\n')


def _forge_the_config(folder: Path, random_: random.Random) -> None:
    path = folder / 'config.yaml'
    if _is_small(path):
        path.write_text(random_.choice(_CONFIGS))


def _damage_bytes(folder: Path, random_: random.Random) -> None:
    path = _any_file(folder, random_)
    if _is_small(path):
        path.write_bytes(damaged(path.read_bytes(), random_))


def _replace_values(folder: Path, random_: random.Random) -> None:
    """In one file of JSON, or in one line of such a file."""
    path = _any_file(folder, random_, random_.choice(['*.json', '*.json', '*.summary.json', '*.jsonl']))
    if not _is_small(path):
        return
    try:
        lines = path.read_text(errors='replace').splitlines() if path.suffix == '.jsonl' else [path.read_text()]
        number = random_.randrange(len(lines))
        content = json.loads(lines[number])
    except (ValueError, RecursionError):
        return
    for _ in range(random_.randint(1, 4)):
        _replace_a_value(content, random_)
    lines[number] = _as_json(content)
    path.write_text('\n'.join(lines))


def _replace_a_value(content: Any, random_: random.Random) -> None:
    """A value, or the key of one."""
    where = content
    while isinstance(where, (dict, list)) and where:
        key = random_.choice(sorted(where) if isinstance(where, dict) else range(len(where)))
        if not isinstance(where[key], (dict, list)) or random_.random() < 0.2:
            if isinstance(where, dict) and random_.random() < 0.3:
                where[random_.choice([*_NAMES, *_ACTING])] = where.pop(key)
            else:
                where[key] = random_.choice(_VALUES)
            return
        where = where[key]


def _nest(folder: Path, random_: random.Random) -> None:
    _any_file(folder, random_).write_text(random_.choice(['[', '{"a":', '({']) * 200_000)


def _make_no_file(folder: Path, random_: random.Random) -> None:
    path = _any_file(folder, random_)
    path.unlink(missing_ok=True)
    random_.choice(_NO_FILES)(path)


def _make_deep(folder: Path, random_: random.Random) -> None:
    """Folders in folders, down to the longest path; or one that leads back."""
    if random_.random() < 0.5:
        (folder / 'again').symlink_to('.')
        return
    with contextlib.suppress(OSError):
        os.makedirs(folder / ('d/' * 900))


def _rename(folder: Path, random_: random.Random) -> None:
    path = _any_file(folder, random_, '*rank*')
    if path.exists():
        name = os.fsencode(path.name).replace(b'rank', random_.choice(_RANKS), 1)
        os.rename(path, os.path.join(os.fsencode(path.parent), name))


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, contextlib.suppress(OSError):  # a path that is too long
        made.bind(str(path))


def _make_huge(path: Path) -> None:
    with open(path, 'wb') as file:
        file.truncate(_HUGE)


def _as_json(value: Any) -> str:
    return json.dumps(value, default=str)


_NO_FILES: list[Callable[[Path], object]] = [
    os.mkfifo,
    os.mkdir,
    _make_huge,
    lambda path: path.symlink_to('/dev/zero'),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to('/etc/hostname'),
    lambda path: path.symlink_to('/proc/self/mem'),
    lambda path: path.symlink_to('..'),
    _make_socket,
]
_HARMS = (
    *(_forge_a_line, _forge_a_line, _forge_an_attempt, _forge_the_config, _damage_bytes, _damage_bytes),
    *(_replace_values, _replace_values, _replace_values, _nest, _make_no_file, _make_deep, _rename),
)


def clear(folder: Path) -> None:
    """Remove the folder of a run."""
    shutil.rmtree(os.fsencode(folder))
