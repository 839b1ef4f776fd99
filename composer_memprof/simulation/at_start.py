"""Within the simulated process: starts the observer when the script has imported torch."""

from __future__ import annotations

import types

import wrapt


def prepare() -> None:
    """Called before the user's code; imports nothing of torch."""
    wrapt.when_imported('torch')(_observe)


def _observe(module: types.ModuleType) -> None:
    del module  # unused
    from composer_memprof.simulation.observer import observe

    observe()
