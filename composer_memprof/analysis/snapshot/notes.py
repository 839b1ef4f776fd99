"""Reading the notes that our recorders add to a snapshot, from a file that is not trusted.

The format is :class:`~composer_memprof.recorders.allocations.notes.SnapshotNotes`. Unknown keys are ignored. Of a newer
version, what this version can't read is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

import numpy as np

from composer_memprof.analysis.snapshot.code import ModuleCode
from composer_memprof.analysis.snapshot.model import Meta, Phases, Tensors
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.analysis.snapshot.untrusted import (
    Names,
    rows_of,
    shown,
    sizes,
    text,
    texts,
    whole,
    whole_numbers,
)
from composer_memprof.recorders.allocations.notes import KEY, VERSION, OutOfMemory
from composer_memprof.vocabulary import TENSOR_CATEGORIES

_Part = TypeVar('_Part')


@dataclass(frozen=True)
class ModuleMarks:
    """Which module runs from each time on: int64 ``time_us`` in ascending order, int32 ``module`` into the names."""

    time_us: np.ndarray
    module: np.ndarray

    def at(self, times_us: np.ndarray) -> np.ndarray:
        """The module that runs at each time, int32; 0 before the first mark."""
        if not len(self.time_us):
            return np.zeros(len(times_us), dtype=np.int32)
        mark = np.searchsorted(self.time_us, times_us, side='right') - 1
        return np.where(mark >= 0, self.module[np.maximum(mark, 0)], 0).astype(np.int32)


@dataclass(frozen=True)
class Notes:
    """The notes as columns. Each part is empty where the snapshot does not have it."""

    version: int
    meta: Meta
    phases: Phases
    tensors: Tensors
    modules: ModuleMarks
    code: ModuleCode
    error: str
    oom: Optional[OutOfMemory]
    rss_peak: Optional[int]
    known_before: Optional[int]
    max_entries: Optional[int]
    memory: list[int]
    keepers: dict[int, str]
    sources: dict[str, str]
    precision: str
    evaluation_graph: Optional[str]
    whole: dict[str, int]
    beside: dict[str, int]
    copies: dict[str, int]
    unused_gradients: dict[str, int]
    without_gradient: dict[str, int]


def read_notes(snapshot: dict[str, Any], modules: Names) -> Notes:
    """The notes of a snapshot.

    Args:
        snapshot (dict): as unpickled.
        modules (Names): numbers the modules' names.

    Raises:
        SnapshotError: if a value is not what this version of the format has there.
    """
    notes = snapshot.get(KEY, {})
    if type(notes) is not dict:
        raise SnapshotError(f'its {KEY} must be a mapping, not {shown(notes)}')
    version = whole(notes, 'version', 1, smallest=1)

    def part(read: Callable[[dict[str, Any]], _Part]) -> _Part:
        try:
            return read(notes)
        except SnapshotError:
            if version <= VERSION:
                raise
            return read({})

    return Notes(
        version=version,
        meta=part(_meta),
        phases=part(_phases),
        tensors=part(_tensors),
        modules=part(lambda notes: _module_marks(notes, modules)),
        code=part(_code),
        error=part(lambda notes: text(notes, 'error')),
        oom=part(_oom),
        rss_peak=part(_rss_peak),
        known_before=part(lambda notes: _whole_or_none(notes, 'known_before')),
        max_entries=part(lambda notes: _whole_or_none(notes, 'max_entries')),
        memory=part(_memory),
        keepers=part(_keepers),
        sources=part(_sources),
        whole=part(lambda notes: _sizes_by_name(notes, 'whole')),
        beside=part(lambda notes: _sizes_by_name(notes, 'beside')),
        copies=part(lambda notes: _sizes_by_name(notes, 'copies')),
        unused_gradients=part(lambda notes: _sizes_by_name(notes, 'unused_gradients')),
        without_gradient=part(lambda notes: _sizes_by_name(notes, 'without_gradient')),
        precision=part(lambda notes: text(notes, 'precision')),
        evaluation_graph=part(lambda notes: text(notes, 'evaluation_graph') if 'evaluation_graph' in notes else None),
    )


def _meta(notes: dict[str, Any]) -> Meta:
    rank = _whole_or_none(notes, 'rank')
    simulated = text(notes, 'simulated')
    return Meta(text(notes, 'device'), text(notes, 'torch'), text(notes, 'recorder'), rank, simulated)


def _phases(notes: dict[str, Any]) -> Phases:
    rows = rows_of(notes.get('phases'), 'phases', 3)
    names = texts((row[2] for row in rows), 'phases')
    known = list(dict.fromkeys(names))
    codes = {name: code for code, name in enumerate(known)}
    return Phases(
        time_us=_ascending([row[0] for row in rows], 'phases'),
        batch=whole_numbers([row[1] for row in rows], 'batch', smallest=-1),
        name=np.fromiter((codes[name] for name in names), np.int64, len(names)),
        names=known,
    )


def _tensors(notes: dict[str, Any]) -> Tensors:
    rows = rows_of(notes.get('tensors'), 'tensors', 5)
    categories = [row[3] for row in rows]
    for category in categories:
        if type(category) is not str or category not in TENSOR_CATEGORIES:
            raise SnapshotError(f'a tensor has an unknown category {shown(category)}')
    names = Names('tensor')
    return Tensors(
        time_us=whole_numbers([row[0] for row in rows], 'time_us', smallest=-1),
        address=whole_numbers([row[1] for row in rows], 'address').astype(np.uint64),
        size=sizes([row[2] for row in rows], 'bytes'),
        category=np.array([TENSOR_CATEGORIES.index(category) for category in categories], dtype=np.int8),
        name=names.indices([row[4] for row in rows]),
        names=names.names,
    )


def _module_marks(notes: dict[str, Any], modules: Names) -> ModuleMarks:
    rows = rows_of(notes.get('modules'), 'modules', 2)
    return ModuleMarks(_ascending([row[0] for row in rows], 'modules'), modules.indices([row[1] for row in rows]))


def _code(notes: dict[str, Any]) -> ModuleCode:
    rows = rows_of(notes.get('code'), 'code', 4)
    lines = [whole_numbers([row[column] for row in rows], 'line').tolist() for column in (1, 2)]
    files, names = (texts((row[column] for row in rows), 'code') for column in (0, 3))
    return ModuleCode(zip(files, *lines, names))


def _oom(notes: dict[str, Any]) -> Optional[OutOfMemory]:
    oom = notes.get('oom')
    if oom is None:
        return None
    if type(oom) is not dict:
        raise SnapshotError(f'its oom must be a mapping, not {shown(oom)}')
    keys = ('device', 'requested', 'allocated', 'reserved', 'free', 'total')
    numbers = {key: _whole_or_none(oom, key) for key in keys}
    return OutOfMemory(**numbers, message=text(oom, 'message') or None)


def _rss_peak(notes: dict[str, Any]) -> Optional[int]:
    rows = rows_of(notes.get('rss'), 'rss', 2)
    return int(whole_numbers([row[1] for row in rows], 'rss').max()) if rows else None


def _memory(notes: dict[str, Any]) -> list[int]:
    found = notes.get('memory', [])
    if type(found) is not list:
        raise SnapshotError(f'its memory must be a list, not {shown(found)}')
    return sizes(found, 'memory').tolist()


def _keepers(notes: dict[str, Any]) -> dict[int, str]:
    rows = rows_of(notes.get('keepers'), 'keepers', 2)
    addresses = whole_numbers([row[0] for row in rows], 'keepers')
    return dict(zip(addresses.tolist(), texts((row[1] for row in rows), 'keepers')))


def _sources(notes: dict[str, Any]) -> dict[str, str]:
    rows = rows_of(notes.get('sources'), 'sources', 3)
    lines = whole_numbers([row[1] for row in rows], 'line').tolist()
    files, found = (texts((row[column] for row in rows), 'sources') for column in (0, 2))
    return {f'{file}:{line}': text for file, line, text in zip(files, lines, found)}


def _sizes_by_name(notes: dict[str, Any], key: str) -> dict[str, int]:
    rows = rows_of(notes.get(key), key, 2)
    return dict(zip(texts((row[0] for row in rows), key), sizes([row[1] for row in rows], key).tolist()))


def _whole_or_none(values: dict[str, Any], key: str) -> Optional[int]:
    return None if values.get(key) is None else whole(values, key)


def _ascending(times_us: list[Any], what: str) -> np.ndarray:
    times = whole_numbers(times_us, 'time_us', smallest=-1)
    if len(times) and bool(np.any(np.diff(times) < 0)):
        raise SnapshotError(f'its {what} must be in order of time')
    return times
