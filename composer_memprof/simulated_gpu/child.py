"""What is set up in a Python process on a simulated GPU, each part when the module that it concerns is imported."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import types

import wrapt

from composer_memprof import simulated_gpu
from composer_memprof.messages import log_error
from composer_memprof.simulated_gpu import composer_values, not_compiled, operators, ranks, stand_ins, values
from composer_memprof.simulated_gpu.ranks import own_launches
from composer_memprof.simulated_gpu.this_process import AT_START_VARIABLE, figures

#: Modules of which torch.compile compiles no frame; those of ``values`` are said when values are followed.
_NOT_COMPILED = ('clocks', 'durations', 'launches', 'ranks')


def prepare() -> None:
    """Called before the user's code; imports nothing of torch."""
    module, _, function = os.environ.get(AT_START_VARIABLE, '').partition(':')
    if function:
        getattr(importlib.import_module(module), function)()
    read = values if figures().get('values') else operators
    wrapt.when_imported('torch')(read.install)
    wrapt.when_imported('torch')(_prepare_clocks)
    composer_values.install()
    stand_ins.offer()
    wrapt.when_imported('torch')(_check_preloaded)
    follow = _follow_own_launches if ranks.simulated_ranks() is None else _stand_for_one_rank
    wrapt.when_imported('torch.distributed')(follow)
    # a collective in a compiled function calls the process group
    not_compiled.leave_alone(*(f'{simulated_gpu.__name__}.{name}' for name in _NOT_COMPILED))


def _prepare_clocks(torch: types.ModuleType) -> None:
    """Let operators be seen while a step is timed."""
    del torch  # unused
    try:
        from composer_memprof.simulated_gpu.launches import launching

        launching.prepare()
    except (AttributeError, RuntimeError, ImportError):
        log_error('steps can not be timed')


def _check_preloaded(torch: types.ModuleType) -> None:
    """Say that the script took the runtime away: torch then finds no GPU."""
    if not hasattr(ctypes.CDLL(None), 'simulated_gpu_assumed'):
        print('simulated GPU: it is not preloaded in this process, which has changed LD_PRELOAD', file=sys.stderr)


def _follow_own_launches(module: types.ModuleType) -> None:
    del module  # unused
    own_launches.install()


def _stand_for_one_rank(module: types.ModuleType) -> None:
    del module  # unused
    ranks.install()
