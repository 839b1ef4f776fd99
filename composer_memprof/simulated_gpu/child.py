"""What is set up in a Python process on a simulated GPU, each part when the module that it concerns is imported."""

from __future__ import annotations

import types

import wrapt

from composer_memprof.simulated_gpu import operators, ranks


def prepare() -> None:
    """Called before the user's code; imports nothing of torch."""
    wrapt.when_imported('torch')(operators.install)
    if ranks.simulated_ranks() is not None:
        wrapt.when_imported('torch.distributed')(_stand_for_one_rank)


def _stand_for_one_rank(module: types.ModuleType) -> None:
    del module  # unused
    ranks.install()
