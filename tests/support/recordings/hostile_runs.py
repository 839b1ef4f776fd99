"""Folders of runs as an enemy would leave them: damaged, forged, and of files that are no files."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from composer_memprof.artifacts.reading.attempts import own_attempt
from tests.support.made_up_runs import run_of, write_files
from tests.support.recordings.damage import VALUES, damaged, mangled

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


def hostile_run(folder: Path, seed: int) -> Path:
    """The folder of a made-up run of two ranks, damaged as ``seed`` says."""
    random_ = random.Random(seed)
    run_of(folder, 2)
    for rank in range(2):
        name = f'rank{rank}.9.memory_snapshot.pickle'
        write_files(folder, rank, {'memory_snapshot': (name, '')})
        (folder / name).write_bytes(mangled(random_))
    line = json.dumps({'batch': 1, 'total': 0.5, 'seconds': {'forward': 0.1}})
    write_files(folder, 0, {'step_times': ('rank0.0.step_times.jsonl', f'{line}\n' * 3)}, status='open')
    write_files(folder, 0, {'config': ('config.yaml', _CONFIG)})
    for rank in range(2):
        with open(folder / f'rank{rank}.manifest.jsonl', 'a') as manifest:
            manifest.write(own_attempt(rank).as_line())
    for _ in range(random_.randint(1, 3)):
        random_.choice(_HARMS)(folder, random_)
    return folder


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < 1 << 22


def _any_file(folder: Path, random_: random.Random) -> Path:
    return random_.choice(sorted(path for path in folder.iterdir() if path.is_file()))


def _forge_a_line(folder: Path, random_: random.Random) -> None:
    manifest = folder / f'rank{random_.randrange(2)}.manifest.jsonl'
    if not _is_small(manifest):
        return
    lines = manifest.read_text(errors='replace').splitlines()
    try:
        entry = json.loads(random_.choice(lines))
        entry[random_.choice(sorted(entry))] = random_.choice([*VALUES, *_NAMES])
        if random_.random() < 0.5:
            entry['path'] = random_.choice(_NAMES)
        if random_.random() < 0.5:
            entry['remote'], entry['status'] = random_.choice(_REMOTES), random_.choice(_STATUSES)
    except (IndexError, ValueError, TypeError, RecursionError):
        return
    with open(manifest, 'a') as file:
        file.write(_as_json(entry) + '\n')


def _forge_an_attempt(folder: Path, random_: random.Random) -> None:
    manifest = folder / f'rank{random_.randrange(2)}.manifest.jsonl'
    if not _is_small(manifest):
        return
    line = json.loads(own_attempt(0).as_line())
    keys = [*line['attempt'], 'ended', 'end', 'failed', 'error', 'line', 'batch']
    for _ in range(random_.randint(1, 3)):
        line['attempt'][random_.choice(keys)] = random_.choice([*VALUES, *_NAMES, 'killed', 'failed', '9999-01-01', 7])
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


def _replace_a_value(folder: Path, random_: random.Random) -> None:
    path = random_.choice(sorted(folder.glob('*.json')) or [folder / 'none.json'])
    if not _is_small(path):
        return
    try:
        content = json.loads(path.read_text(errors='replace'))
    except (ValueError, RecursionError):
        return
    where: Any = content
    while isinstance(where, (dict, list)) and where:
        key = random_.choice(sorted(where) if isinstance(where, dict) else range(len(where)))
        if not isinstance(where[key], (dict, list)) or random_.random() < 0.2:
            where[key] = random_.choice([*VALUES, *_NAMES])
            break
        where = where[key]
    path.write_text(_as_json(content))


def _nest(folder: Path, random_: random.Random) -> None:
    _any_file(folder, random_).write_text(random_.choice(['[', '{"a":', '({']) * 200_000)


def _make_no_file(folder: Path, random_: random.Random) -> None:
    path = _any_file(folder, random_)
    path.unlink()
    random_.choice(_NO_FILES)(path)


def _rename(folder: Path, random_: random.Random) -> None:
    path = _any_file(folder, random_)
    os.rename(path, os.fsencode(path).replace(b'rank', random_.choice([b'\xff\xfe', b'\x1b[2Jrank', b'rank rank'])))


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
]
_HARMS = (
    *(_forge_a_line, _forge_a_line, _forge_an_attempt, _forge_the_config, _damage_bytes, _damage_bytes),
    *(_replace_a_value, _nest, _make_no_file, _rename),
)


def clear(folder: Path) -> None:
    """Remove the folder of a run."""
    shutil.rmtree(os.fsencode(folder))
