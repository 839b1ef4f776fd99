"""The file on what grows between MemorySnapshot's windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from composer.utils import dist

from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.report.text.tables.files import write_json
from composer_memprof.report.text.tables.head import StageHead


def growth_part(kind: str, stamp: Stamp, search: Callable[[], dict[str, Any]]) -> Part:
    """The file, for a child to write: it searches first.

    Args:
        kind (str): of the callback.
        stamp (Stamp): when it searches.
        search (Callable): returns what it found.
    """
    at = stamp.timestamp
    head = StageHead(dist.get_global_rank(), at.epoch.value, at.batch.value, 'train').as_dict()
    return Part(f'{kind}.growing', '.growing.json', lambda path: write_json({**head, **search()}, path))
