"""The values that the host reads back, though no kernel runs.

What comes from the host, from constants, from shapes and from random numbers alone is small more often than not. Up to
64 KiB for each storage, or 1 MiB of integers, is computed on the host as well, beside the simulation: lengths, masks,
positions, flags. All else, which follows from weights and activations, gets a value that a training that works could have.

- `known`: what is known of each storage.
- `keys`: how operators on known tensors are seen, at no cost for all others. Without a compiler for C++ there is no other way
  that keeps a step's time: a ``TorchDispatchMode`` would see every operator, and change what is compiled.
- `following`: operators on known values; `rules`: on tensors of which only a rule is known.
- `sources`: constants and random numbers, with which values begin.
- `reading`: what the host reads, and copies between both.
- `assuming`, `counting`: checks, comparisons, choices, and results whose size depends on values; `descending`: slopes in L-BFGS.
- `reads`: each read, for the verdict; `uses`: what the script does with it; `repeated`: answers that end a loop.
"""

from __future__ import annotations

import types

from composer_memprof.messages import log_error
from composer_memprof.simulated_gpu import not_compiled


def install(torch: types.ModuleType) -> None:
    """Follow values in this process, or say that this torch lacks what that needs. Called once torch is imported."""
    from composer_memprof.simulated_gpu.values import runtime

    if not runtime.is_there():
        return
    try:
        from composer_memprof.simulated_gpu.values import (
            assuming,
            counting,
            descending,
            following,
            keys,
            reading,
            repeated,
            sources,
        )

        can_follow = keys.prepare()
    except (AttributeError, ImportError):
        log_error('values can not be followed')
        can_follow = False
    if not can_follow:
        runtime.assumed(f'values are zeros: torch {torch.__version__} lacks what following them needs')
        return
    not_compiled.leave_alone(__name__)
    keys.fallback(following.follow)
    for part in (sources, reading, repeated, assuming, counting, descending):
        part.install()
    keys.activate()
