"""What MemProfiler has read, in memory and in files: line by line, and what the trackers among its sources leave."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any, Optional

from composer.utils import dist

from composer_memprof.artifacts.child import ReadAtFork
from composer_memprof.artifacts.names import Naming, Stamp
from composer_memprof.artifacts.store import ArtifactStore, GrowingFile, Part
from composer_memprof.messages import warn
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.allocations.snapshot_pickle import write_pickle
from composer_memprof.recorders.functions.recorder import Call, Reading
from composer_memprof.recorders.modules.result import ModuleMemory
from composer_memprof.report.text.function_memory import json_line, plain_name, yaml_entry
from composer_memprof.report.text.module_memory import Layout, write_json, write_log

YAML, JSON_LINES, PICKLE = '.yaml', '.jsonl', '.pickle'
#: Readings that stay in memory; the files have all.
_KEPT = 100_000
_FSDP_STATS = 'rank_{rank}_fsdp_memory_stats.yaml'
_WRITERS = {YAML: yaml_entry, JSON_LINES: json_line}


class MemoryStats:
    """The readings of a run, and the files of each window.

    Args:
        kind (str): in the manifest.
        formats (Sequence[str]): of ``YAML``, ``JSON_LINES`` and ``PICKLE``.
        compress (bool): gzip each file once it is complete.
        layout (Layout): of the tables by module.
    """

    def __init__(self, kind: str, formats: Sequence[str], compress: bool, layout: Layout) -> None:
        self._kind = kind
        self._formats = formats
        self._compress = compress
        self._layout = layout
        self._rank = dist.get_global_rank()
        self._lock = threading.RLock()
        #: The newest values by key, and bytes by device and category at the peak, by function and iteration.
        self.readings: dict[str, dict[str, Any]] = {}
        self.peaks: dict[tuple[str, int], dict[str, dict[str, int]]] = {}
        self._window: dict[str, dict[str, Any]] = {}
        self._store: Optional[ArtifactStore] = None
        self._growing: dict[str, GrowingFile] = {}
        self._is_full = False

    def open(self, store: ArtifactStore, stamp: Stamp) -> None:
        """A window begins: its files are there from the first reading on."""
        self._rank = dist.get_global_rank()
        self._store, self._stamp, self._window, self._growing = store, stamp, {}, {}

    def close(self) -> None:
        """The window's files are complete."""
        growing, self._growing = self._growing, {}
        for file in growing.values():
            file.close()
        store, self._store = self._store, None
        if store is not None and self._window and PICKLE in self._formats:
            values = self._window
            part = Part(f'{self._kind}{PICKLE}', PICKLE, lambda path: write_pickle(values, path), self._compress)
            store.save([part], self._stamp)

    def take(self, reading: Reading) -> None:
        key = reading.key(self._rank)
        with self._lock:
            self.readings[key] = self._window[key] = reading.values
            if len(self.readings) > _KEPT:
                self.readings.pop(next(iter(self.readings)))
            for suffix, write in _WRITERS.items():
                if suffix not in self._formats or self._store is None:
                    continue
                if suffix not in self._growing:
                    self._grow(suffix, self._kind + suffix.replace(YAML, ''), suffix)
                self._growing[suffix].write(write(key, reading.values))

    def take_memory(self, call: Call, memory: ModuleMemory, model: str) -> None:
        """A call's memory by category and module; ``model`` is the root module's class."""
        if self._store is None:
            return
        peaks = self.peaks[call.function, call.iteration] = {device: {**sizes} for device, sizes in memory.peak.items()}
        if _FSDP_STATS not in self._growing:
            self._grow(_FSDP_STATS, f'{self._kind}.fsdp_stats', YAML, self._named(_FSDP_STATS, YAML))
        self._growing[_FSDP_STATS].write(yaml_entry(f'{self._rank}.{call.function}.{call.iteration}', peaks))
        head = {'rank': self._rank, 'function': call.function, 'iteration': call.iteration}
        name = f'fsdp_mem_rank_{{rank}}_{plain_name(call.function)}_{call.iteration}.log'
        naming, kind, zipped, layout = self._named(name, '.log'), f'{self._kind}.fsdp', self._compress, self._layout
        self._save(
            Part(kind, '.log', lambda path: write_log(memory, path, model=model, layout=layout), zipped, naming),
            Part(f'{kind}.json', '.json', lambda path: write_json(memory, path, **head), zipped, naming),
        )

    def take_snapshot(self, call: Call, moment: str, history: AllocatorHistory) -> None:
        """The allocator's history at the start or end of a call."""
        naming = self._named(
            f'cuda_alloc_rank_{{rank}}.{plain_name(call.function)}.{call.iteration}.{moment}{PICKLE}', PICKLE
        )
        take = functools.cache(history.take)
        part = Part(f'{self._kind}.cuda_alloc', PICKLE, lambda path: write_pickle(take(), path), self._compress, naming)
        self._save(part, read_at_fork=ReadAtFork(take, history.settle))

    def _grow(self, name: str, kind: str, suffix: str, naming: Optional[Naming] = None) -> None:
        assert self._store is not None
        self._growing[name] = self._store.grow(kind, suffix, self._stamp, compress=self._compress, naming=naming)

    def _save(self, *parts: Part, read_at_fork: Optional[ReadAtFork] = None) -> None:
        assert self._store is not None
        if self._store.has_room():
            self._store.save(parts, self._stamp, read_at_fork=read_at_fork)
        elif not self._is_full:
            self._is_full = True
            warn('MemProfiler leaves out what comes faster than it can be written; read fewer calls')

    def _named(self, filename: str, suffix: str) -> Naming:
        assert self._store is not None
        return Naming(filename, self._store.naming.remote, suffix)
