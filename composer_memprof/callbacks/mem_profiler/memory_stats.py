"""MemProfiler's readings, in memory and in the files of each window."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from composer.utils import dist

from composer_memprof.artifacts.naming.compression import Compress
from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.store import ArtifactStore, GrowingFile, Part
from composer_memprof.artifacts.writing.child.work import ReadAtFork
from composer_memprof.artifacts.writing.failures import is_lost_folder
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.allocations.snapshot_pickle import write_pickle
from composer_memprof.recorders.functions.recorder import Reading
from composer_memprof.recorders.functions.source import FunctionCall
from composer_memprof.recorders.modules.result import ModuleMemory
from composer_memprof.report.text.tables.files import write_json, write_text
from composer_memprof.report.text.tables.function_memory import file_name_part, json_line, yaml_entry
from composer_memprof.report.text.tables.head import CallHead
from composer_memprof.report.text.tables.module_memory import Layout, module_memory_dict, module_memory_text

YAML, JSON_LINES, PICKLE = '.yaml', '.jsonl', '.pickle'
#: Readings kept in memory; the files have all.
_MAX_READINGS = 100_000
_FSDP_STATS = 'rank_{rank}_fsdp_memory_stats.yaml'
_FORMATTERS = {YAML: yaml_entry, JSON_LINES: json_line}


class MemoryStats:
    """The readings of a run, and the files of each window.

    Args:
        kind (str): of the artifacts, in the manifest.
        formats (Sequence[str]): of ``YAML``, ``JSON_LINES`` and ``PICKLE``.
        compress (bool | str): the codec of each file, once it is complete.
        layout (Layout): of the text by module.
    """

    def __init__(self, kind: str, formats: Sequence[str], compress: Compress, layout: Layout) -> None:
        self._kind = kind
        self._formats = formats
        self._compress = compress
        self._layout = layout
        self._rank = dist.get_global_rank()
        self._lock = threading.RLock()
        #: The newest readings, by key.
        self.readings: dict[str, dict[str, Any]] = {}
        #: Bytes by device and category at the peak, by function and iteration.
        self.peaks: dict[tuple[str, int], dict[str, dict[str, int]]] = {}
        self._window: dict[str, dict[str, Any]] = {}
        #: How many readings of the window its newest pickle has.
        self._dumped = 0
        self._store: Optional[ArtifactStore] = None
        self._growing: dict[str, GrowingFile] = {}

    def open(self, store: ArtifactStore, stamp: Stamp) -> None:
        """A window begins. Each of its files is created at its first reading."""
        self._rank = dist.get_global_rank()
        self._store, self._stamp, self._window, self._growing = store, stamp, {}, {}
        self._dumped = 0

    def close(self) -> None:
        """The window ended; its files are complete."""
        growing, self._growing = self._growing, {}
        for file in growing.values():
            file.close()
        self.dump(is_last=True)
        self._store = None

    def dump(self, is_last: bool = False) -> None:
        """Save the pickle of the window's readings so far, unless an earlier one has them all.

        Where there is no room for it, the one at the window's end has them.
        """
        with self._lock:
            values = dict(self._window)
        store = self._store
        if store is None or PICKLE not in self._formats or len(values) == self._dumped:
            return
        part = Part(f'{self._kind}{PICKLE}', PICKLE, lambda path: write_pickle(values, path), self._compress)
        if is_last or store.why_no_room() is None:
            self._dumped = len(values)
            store.save([part], self._stamp)

    def take(self, reading: Reading) -> None:
        """Keep a reading, and append it to the window's files."""
        key = reading.key(self._rank)
        with self._lock:
            self.readings[key] = self._window[key] = reading.values
            if len(self.readings) > _MAX_READINGS:
                self.readings.pop(next(iter(self.readings)))
            try:
                self._append(key, reading.values)
            except OSError as error:
                if self._store is None or not is_lost_folder(error):
                    raise
                self._store.report_lost_folder(error)  # one warning for all callbacks
                self._store = None

    def _append(self, key: str, values: Mapping[str, Any]) -> None:
        for suffix, format_entry in _FORMATTERS.items():
            if suffix not in self._formats or self._store is None:
                continue
            if suffix not in self._growing:
                self._grow(suffix, self._kind + suffix.replace(YAML, ''), suffix)
            self._growing[suffix].write(format_entry(key, values))

    def take_memory(self, call: FunctionCall, memory: ModuleMemory, model: str) -> None:
        """Save a call's memory by category and module. ``model`` is the class of the root module."""
        if self._store is None:
            return
        peaks = self.peaks[call.function, call.iteration] = {device: {**sizes} for device, sizes in memory.peak.items()}
        if _FSDP_STATS not in self._growing:
            self._grow(_FSDP_STATS, f'{self._kind}.fsdp_stats', YAML, self._named(_FSDP_STATS, YAML))
        self._growing[_FSDP_STATS].write(yaml_entry(f'{self._rank}.{call.function}.{call.iteration}', peaks))
        head = CallHead(self._rank, call.function, call.iteration)
        naming = self._named(f'fsdp_mem_rank_{{rank}}_{file_name_part(call.function)}_{call.iteration}.log', '.log')
        kind, compress, layout = f'{self._kind}.fsdp', self._compress, self._layout
        self._save(
            Part(
                kind,
                '.log',
                lambda path: write_text(module_memory_text(memory, model, layout), path),
                compress,
                naming,
            ),
            Part(
                f'{kind}.json',
                '.json',
                lambda path: write_json(module_memory_dict(head, memory), path),
                compress,
                naming,
            ),
        )

    def take_snapshot(self, call: FunctionCall, point: str, history: AllocatorHistory) -> None:
        """Save the allocator's history at the ``point`` (``'start'`` or ``'end'``) of a call."""
        function = file_name_part(call.function)
        naming = self._named(f'cuda_alloc_rank_{{rank}}.{function}.{call.iteration}.{point}{PICKLE}', PICKLE)
        take = functools.cache(history.take)
        part = Part(f'{self._kind}.cuda_alloc', PICKLE, lambda path: write_pickle(take(), path), self._compress, naming)
        self._save(part, read_at_fork=ReadAtFork(take, history.settle))

    def _grow(self, name: str, kind: str, suffix: str, naming: Optional[Naming] = None) -> None:
        assert self._store is not None
        self._growing[name] = self._store.grow(kind, suffix, self._stamp, compress=self._compress, naming=naming)

    def _save(self, *parts: Part, read_at_fork: Optional[ReadAtFork] = None) -> None:
        assert self._store is not None
        reason = self._store.why_no_room()
        if reason is None:
            self._store.save(parts, self._stamp, read_at_fork=read_at_fork)
        else:
            self._store.leave_out(parts[0], self._stamp, reason)

    def _named(self, filename: str, suffix: str) -> Naming:
        assert self._store is not None
        return Naming(filename, self._store.naming.remote, suffix)
