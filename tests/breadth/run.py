"""Trains each configuration on a simulated GPU and prints its peak beside an independent count: ``make accuracy ARGS=breadth``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import torch

from composer_memprof.messages import human_bytes
from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with
from tests.breadth.rows import ROWS

_GPU, _STEPS = 'a100-80gb', 3
#: The part by which a figure may differ from its count.
_CLOSE = 0.05
#: cuBLAS takes no memory from torch, which the count does not know. A library that asks for a GPU leaves CUDA to forks.
_QUIET = {
    'CUBLAS_WORKSPACE_CONFIG': ':0:0',
    'CUBLASLT_WORKSPACE_SIZE': '0',
    'HF_HUB_OFFLINE': '1',
    'PYTORCH_NVML_BASED_CUDA_CHECK': '1',
}


@dataclasses.dataclass(frozen=True)
class Seen:
    """A configuration's simulation. Sizes are in bytes.

    Attributes:
        failure: why it did not run to its steps; ``''`` if it did.
    """

    name: str
    steps: int
    allocated: int
    failure: str


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="make accuracy ARGS='breadth …'")
    parser.add_argument('words', nargs='*', help='only configurations with one of these words in their name')
    parser.add_argument('--apart', action='store_true', help='run simulate for each, which takes ten times as long')
    given = parser.parse_args(arguments)
    names = [name for name in ROWS if not given.words or any(word in name for word in given.words)]
    print(
        f"simulated: {_GPU}, torch {torch.__version__}, {_STEPS} optimizer steps each; counted by torch's MemTracker\n"
    )
    print('| configuration | source | data | allocated | counted | error |\n|---|---|---|---|---|---|')
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(number) for number in range(len(names))]
        seen = map(simulated, names, folders) if given.apart else trained(names)
        found = list(_rows(seen, counted(names)))
    _summary(found)


def _rows(seen: Iterator[Seen], counts: Iterator[dict[str, Any]]) -> Iterator[tuple[Seen, Optional[float]]]:
    for each, count in zip(seen, counts):
        row, size = ROWS[each.name], count.get('bytes')
        error = each.allocated / size - 1 if size and not each.failure else None
        shown = each.failure or human_bytes(each.allocated)
        against = human_bytes(size) if size else 'could not be counted'
        of_count = '' if error is None else f'{error:+.1%}'
        print(f'| {each.name} | {row.source} | {row.data} | {shown} | {against} | {of_count} |', flush=True)
        yield each, error


def _summary(found: list[tuple[Seen, Optional[float]]]) -> None:
    ran = [each for each, _ in found if not each.failure]
    errors = [abs(error) for _, error in found if error is not None]
    close = sum(error <= _CLOSE for error in errors)
    print(f'\n{len(ran)} of {len(found)} run to {_STEPS} steps ({len(ran) / max(1, len(found)):.0%})')
    print(f'{close} of {len(errors)} that could be counted are within {_CLOSE:.0%} of the count')


def simulated(name: str, folder: Path) -> Seen:
    """Train one in processes of its own, which write their recording into a new folder."""
    simulate = [sys.executable, '-m', 'composer_memprof', 'simulate', '--json', '--gpu', _GPU, '--folder', str(folder)]
    ran = subprocess.run(
        [*simulate, '--steps', str(_STEPS), '--', sys.executable, '-m', 'tests.breadth.rows', name],
        env={**os.environ, **_QUIET},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        result = json.loads(ran.stdout.splitlines()[-1])
        process = result['processes'][0]
    except (IndexError, ValueError, KeyError):
        return Seen(name, 0, 0, _last_line(ran.stderr))
    allocated = max(device['allocated'] for device in process['devices'])
    failure = '' if process['steps'] >= _STEPS and result['fits'] else result['reason'] or result['verdict']
    return Seen(name, process['steps'], allocated, f'{failure}: {_last_line(ran.stderr)}' if failure else '')


def trained(names: Sequence[str]) -> Iterator[Seen]:
    """The same figures, in order, of forks of one process, which does not import all for each."""
    for name, found in zip(names, _lines_of('tests.breadth.forked', names)):
        yield (
            Seen(name, found['steps'], found['allocated'], found['failure'])
            if found
            else Seen(name, 0, 0, 'no figures')
        )


def counted(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """For each one ``bytes``, in order, or nothing where it could not be counted."""
    return _lines_of('tests.breadth.counting', names)


def _lines_of(module: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """For each name what a process on the simulated GPU prints of it; nothing if it has ended before, or lost it."""
    command = [sys.executable, '-m', module, *names]
    environment = {**environment_with(find_device(_GPU), values=True), **_QUIET}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        lines = (json.loads(line) for line in process.stdout or () if line.startswith('{"name"'))
        following = next(lines, {})
        for name in names:
            found, following = (following, next(lines, {})) if following.get('name') == name else ({}, following)
            yield found


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if 'Error' in line] or text.strip().splitlines()
    return lines[-1][:200].replace('|', '/') if lines else 'no message'


if __name__ == '__main__':
    main(sys.argv[1:])
