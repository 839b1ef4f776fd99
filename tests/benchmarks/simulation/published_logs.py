"""Logs of others' trainings on real GPUs, each with its own source, beside the same source on simulated GPUs: ``make
accuracy ARGS='logs CLONE FILE.csv'``.

The logs are those of modded-nanogpt, which print what torch allocated and reserved at most, and begin with their source.
CLONE is a clone of https://github.com/KellerJordan/modded-nanogpt, FILE.csv has a line for each log with the columns
``log`` (its path there), ``torch``, ``gpu``, ``gpus``, ``allocated_mib`` and ``reserved_mib``, as the log's last line and its
``nvidia-smi`` have them. Only logs of the torch that is installed here are run, and of its nightly builds, which can't be
installed any longer.

Runs of one source differ: by when garbage is collected, and by how far ranks are apart. So a figure stands beside the range of
all the logs in the same folder that begin with the same source, too, and the last line says how close real runs are to each
other.

Of a source one thing is changed: the number of its steps, so that each stage of its schedule has a few, with evaluations
between. The number has the same rest by six, which is what decides whether gradients lie there where a stage of a third of the
steps begins, and evaluations come after an even number where they do. Tokens are random, so is the vocabulary that a source asks
``tiktoken`` for, and ``nvidia-smi`` says nothing. Nothing is cached: a compiler that measures kernels needs memory, too.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np
import torch

#: What ends a source in a log, and what begins a further file of it.
_END = f'\n{"=" * 100}\n'
_FILE = re.compile(r'\n+-{40}\n# (\S+\.py)\n-{40}\n+')
#: Numbers of steps: the fewest that visit all that the schedule has, and the period with which parities repeat.
_STEPS = {'num_scheduled_iterations': (16, 6), 'num_extension_iterations': (2, 2), 'val_loss_every': (4, 2)}
_PEAK = re.compile(r'peak memory allocated: (\d+) MiB reserved: (\d+) MiB')
_GPUS = {'NVIDIA H100 80GB HBM3': 'h100-80gb', 'NVIDIA H200': 'h200-141gb'}
#: How close a figure is to be: allocated, reserved.
_CLOSE = (0.001, 0.01)
_HEADER, _MAGIC, _BEGIN = 256, 20240520, 50256
#: In place of the package, which fetches its vocabulary: a random one.
_TIKTOKEN = """
import random, types
def get_encoding(name):
    choose, words = random.Random(0), {bytes([each]): each for each in range(256)}
    while len(words) < 50256:
        words.setdefault(bytes(choose.choices(range(97, 123), k=choose.randint(2, 9))), len(words))
    return types.SimpleNamespace(_mergeable_ranks=words)
"""
_FILES = {'fineweb_train_000001': 30_000_000, 'fineweb_train_000002': 30_000_000, 'fineweb_val_000000': 60_000_000}

#: MiB allocated and reserved.
Peaks = tuple[int, int]
#: Simulated, of the log, of all runs of its source.
Compared = tuple[Optional[Peaks], Peaks, list[Peaks]]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="make accuracy ARGS='logs …'", description=__doc__)
    parser.add_argument('clone', nargs='?', help='folder of a clone of KellerJordan/modded-nanogpt')
    parser.add_argument('table', nargs='?', help='the CSV of its logs')
    parser.add_argument('words', nargs='*', help='only logs with one of these words in their path')
    given = parser.parse_args(arguments)
    if not given.clone or not given.table or not Path(given.clone).is_dir() or not Path(given.table).is_file():
        print(
            "Not compared: make accuracy ARGS='logs CLONE FILE.csv' needs a clone of modded-nanogpt and a CSV of its logs"
        )
        return
    with open(given.table, newline='') as file:
        rows = [
            row for row in csv.DictReader(file) if not given.words or any(word in row['log'] for word in given.words)
        ]
    version = torch.__version__.partition('+')[0]
    found = [row for row in rows if re.split(r'\.dev|\+', row['torch'])[0] == version and row['gpu'] in _GPUS]
    print(f'torch {version}: {len(found)} of {len(rows)} logs')
    columns = [f'{name} MiB: simulated | real | error | runs of its source' for name in ('allocated', 'reserved')]
    print(f'| log | its torch | {" | ".join(columns)} |\n{10 * "|---"}|')
    compared = []
    with tempfile.TemporaryDirectory() as data:
        make_data(Path(data))
        for row in found:
            runs = _runs_of_same_source(given.clone, row['log'])
            simulated = _simulated(given.clone, row, data)
            compared.append((simulated, (int(row['allocated_mib']), int(row['reserved_mib'])), runs))
            print(_line(row, *compared[-1]), flush=True)
    for place, name in enumerate(('allocated', 'reserved')):
        print(_summary(place, name, compared))


def _summary(place: int, name: str, compared: list[Compared]) -> str:
    most = _CLOSE[place]
    to_log = to_range = 0
    shares = []
    for simulated, real, runs in compared:
        values = [run[place] for run in runs]
        if simulated is not None:
            to_log += _are_close(simulated[place], real[place], most)
            to_range += min(values) * (1 - most) <= simulated[place] <= max(values) * (1 + most)
        pairs = list(itertools.combinations(values, 2))
        if pairs:
            shares.append(sum(_are_close(*pair, most) for pair in pairs) / len(pairs))
    between = f', two real runs of one source in {sum(shares) / len(shares):.0%}' if shares else ''
    return (
        f'{name}: of {len(compared)}, {to_log} within {most:.1%} of the log, {to_range} within {most:.1%} of the runs of its '
        f'source{between}'
    )


def _are_close(one: int, other: int, most: float) -> bool:
    return abs(one / other - 1) <= most


def _git(clone: str, *arguments: str) -> str:
    return subprocess.run(['git', '-C', clone, *arguments], capture_output=True, text=True, check=True).stdout


def _runs_of_same_source(clone: str, log: str) -> list[Peaks]:
    """The peaks of all runs of the same source, the log's own among them."""
    folder = os.path.dirname(log)
    beside = _git(clone, 'ls-tree', '--name-only', f'HEAD:{folder}').splitlines()
    texts = [_git(clone, 'show', f'HEAD:{folder}/{name}') for name in beside if name.endswith(('.txt', '.log'))]
    source = _git(clone, 'show', f'HEAD:{log}').partition(_END)[0]
    found = (_PEAK.findall(text) for text in texts if text.partition(_END)[0] == source)
    return [(int(each[-1][0]), int(each[-1][1])) for each in found if each]


def sources(log: str) -> dict[str, str]:
    """The files that a log begins with, by name.

    >>> line = '-' * 40
    >>> sources(f'import os\\n\\n{line}\\n# kernels.py\\n{line}\\n\\nimport torch\\n{"=" * 100}\\nRunning')
    {'train_gpt.py': 'import os', 'kernels.py': 'import torch'}
    """
    first, *others = _FILE.split(log.partition(_END)[0])
    return {'train_gpt.py': first, **dict(zip(others[::2], others[1::2]))}


def shortened(source: str) -> str:
    """The source with fewer steps.

    >>> shortened('num_scheduled_iterations: int = 1450  # steps'), shortened('num_extension_iterations = 15')
    ('num_scheduled_iterations: int = 16  # steps', 'num_extension_iterations = 3')
    """
    for name, (least, period) in _STEPS.items():
        found = re.search(rf'{name}(: int)? = (\d+)', source)
        if found:
            few = least + (int(found[2]) - least) % period
            source = f'{source[: found.start(2)]}{few}{source[found.end(2) :]}'
    return source


def make_data(folder: Path) -> None:
    """Random tokens, frequent and rare ones as words are, in documents as long as those of web pages."""
    random = np.random.default_rng(0)
    shares = (np.arange(_BEGIN) + 2.7) ** -1.15
    bounds = np.cumsum(shares / shares.sum())
    (folder / 'data/fineweb10B').mkdir(parents=True)
    for name, count in _FILES.items():
        tokens = np.searchsorted(bounds, random.random(count)).astype(np.uint16)
        begins = np.cumsum(np.maximum(30, random.lognormal(np.log(400), 1, count // 300)).astype(int))
        tokens[[0, *begins[begins < count]]] = _BEGIN
        header = np.zeros(_HEADER, np.int32)
        header[:3] = _MAGIC, 1, count
        (folder / 'data/fineweb10B' / f'{name}.bin').write_bytes(header.tobytes() + tokens.tobytes())


def _simulated(clone: str, row: dict[str, str], data: str) -> Optional[Peaks]:
    log = _git(clone, 'show', f'HEAD:{row["log"]}')
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources(log).items():
            (Path(folder) / name).write_text(shortened(source))
        (Path(folder) / 'tiktoken.py').write_text(_TIKTOKEN)
        tools = Path(folder) / 'bin'
        tools.mkdir()
        (tools / 'nvidia-smi').write_text('#!/bin/sh\n')
        (tools / 'nvidia-smi').chmod(0o755)
        environment = {
            **os.environ,
            'DATA_PATH': data,
            'PATH': os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ['PATH'])),
            'TORCHINDUCTOR_CACHE_DIR': str(Path(folder) / 'inductor'),
            'TRITON_CACHE_DIR': str(Path(folder) / 'triton'),
        }
        simulate = [
            sys.executable,
            '-m',
            'composer_memprof',
            'simulate',
            '--gpu',
            _GPUS[row['gpu']],
            '--steps',
            '0',
            '--',
        ]
        command = [*simulate, 'torchrun', '--nproc-per-node', row['gpus'], 'train_gpt.py']
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        found = _PEAK.search(ran.stdout)
        if found is None:
            print((ran.stdout + ran.stderr)[-3000:], file=sys.stderr)
            return None
        return int(found[1]), int(found[2])


def _line(row: dict[str, str], simulated: Optional[Peaks], real: Peaks, runs: list[Peaks]) -> str:
    cells = [row['log'].removeprefix('records/'), row['torch']]
    for place in (0, 1):
        values = [run[place] for run in runs]
        cells += [
            f'{simulated[place]:,}' if simulated else 'does not run',
            f'{real[place]:,}',
            f'{simulated[place] / real[place] - 1:+.2%}' if simulated else '',
            f'{min(values):,} to {max(values):,} ({len(values)})',
        ]
    return f'| {" | ".join(cells)} |'


if __name__ == '__main__':
    main(sys.argv[1:])
