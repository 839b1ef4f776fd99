"""Trains configurations on a simulated GPU, each in a fork of one process that has imported all: ``python -m tests.breadth.forked NAME…``.

The figures are those of ``simulate``, which takes a process of its own for each and records it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable

import torch

from tests.breadth.row import train
from tests.breadth.rows import ROWS

_STEPS = 3
#: What most configurations import, if it is there.
_IMPORTED = ('torchvision', 'composer.functional', 'transformers.modeling_utils', 'peft', 'timm', 'torch_geometric.nn')


def main(names: list[str]) -> None:
    """Print for each name the steps, the peak in bytes, and why it did not run to its steps."""
    import_all()
    for name in names:
        in_a_fork(functools.partial(_train, name))


def import_all() -> None:
    """Import what most configurations do, before anything is forked."""
    for module in _IMPORTED:
        if importlib.util.find_spec(module.partition('.')[0]) is not None:
            importlib.import_module(module)
    if torch.cuda.is_initialized():
        raise RuntimeError('CUDA has started, so that no fork can use it')


def in_a_fork(run: Callable[[], None]) -> bool:
    """Whether a forked process came to the end of it."""
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1] == 0
    try:
        run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _train(name: str) -> None:
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    failure = ''
    try:
        with torch.device('cuda'):
            training = ROWS[name].make()
        train(training, _STEPS, count)
    except BaseException as error:
        traceback.print_exc()
        failure = ' '.join(f'{type(error).__name__}: {error}'.split())[:200]
    allocated = torch.cuda.max_memory_allocated()
    print(json.dumps({'name': name, 'steps': steps, 'allocated': allocated, 'failure': failure}), flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
