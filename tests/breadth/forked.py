"""Trains configurations on a simulated GPU, each in a fork of one process that has imported all: ``python -m tests.breadth.forked NAME…``.

The figures are those of ``simulate``, which takes a process of its own for each and records it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import traceback

import torch

from tests.breadth.row import train
from tests.breadth.rows import ROWS

_STEPS = 3
#: What most configurations import, if it is there.
_IMPORTED = ('torchvision', 'composer.functional', 'transformers.modeling_utils', 'peft', 'timm', 'torch_geometric.nn')


def main(names: list[str]) -> None:
    """Print for each name the steps, the peak in bytes, and why it did not run to its steps."""
    for module in _IMPORTED:
        if importlib.util.find_spec(module.partition('.')[0]) is not None:
            importlib.import_module(module)
    if torch.cuda.is_initialized():
        raise RuntimeError('CUDA has started, so that no fork can use it')
    for name in names:
        process = os.fork()
        if not process:
            _train(name)
        os.waitpid(process, 0)


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
    os._exit(0)


if __name__ == '__main__':
    main(sys.argv[1:])
