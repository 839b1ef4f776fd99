"""What is set up in a Python process on a simulated GPU, each part when the module that it concerns is imported."""

from __future__ import annotations

import importlib
import os
import types

import wrapt

from composer_memprof.simulated_gpu import composer_values, operators, ranks

#: What else to call at the start: ``module:function``.
AT_START_VARIABLE = 'SIMULATED_GPU_AT_START'


def prepare() -> None:
    """Called before the user's code; imports nothing of torch."""
    module, _, function = os.environ.get(AT_START_VARIABLE, '').partition(':')
    if function:
        getattr(importlib.import_module(module), function)()
    wrapt.when_imported('torch')(operators.install)
    composer_values.install()
    if ranks.simulated_ranks() is not None:
        wrapt.when_imported('torch.distributed')(_stand_for_one_rank)


def _stand_for_one_rank(module: types.ModuleType) -> None:
    del module  # unused
    ranks.install()
