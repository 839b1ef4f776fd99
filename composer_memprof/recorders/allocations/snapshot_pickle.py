"""Writing a memory snapshot, of whichever recorder, as files that others read."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

#: What torch's own snapshot viewer can read.
PICKLE_PROTOCOL = 4


def write_pickle(snapshot: dict[str, Any], path: Path) -> None:
    """Write the snapshot as a pickle of plain dicts, lists, strings and numbers."""
    with open(path, 'wb') as file:
        pickle.dump(snapshot, file, protocol=PICKLE_PROTOCOL)


def with_notes(make: Callable[[], dict[str, Any]], notes: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot that ``make`` makes, with ``notes`` of ours beside torch's own keys."""
    snapshot = make()
    own = {'device': 'cuda', 'torch': str(torch.__version__), 'recorder': 'allocator_history'}
    return {**snapshot, 'composer_memprof': {**own, **snapshot.get('composer_memprof', {}), **notes}}
