"""Within the simulated process: what is set up when the script has imported torch."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import wrapt


def prepare() -> None:
    """Called before the user's code; imports nothing of torch."""
    wrapt.when_imported('torch')(_observe)
    wrapt.when_imported('torch')(_spare_files)


def _spare_files(torch: types.ModuleType) -> None:
    """Let ``torch.save`` leave a file alone that is there: a real checkpoint must not become one of zeros."""
    save = torch.save

    def save_new(obj: Any, f: Any, *arguments: Any, **keywords: Any) -> None:
        if isinstance(f, (str, os.PathLike)) and os.path.exists(f):
            print(
                f'simulated GPU: torch.save left {os.fspath(f)!r} as it is; its values would be zeros', file=sys.stderr
            )
            return
        save(obj, f, *arguments, **keywords)

    torch.save = save_new  # type: ignore[attr-defined]


def _observe(module: types.ModuleType) -> None:
    del module  # unused
    from composer_memprof.simulation.process.process_observer import observe

    observe()
