"""A reader for each kind of JSON file that a rank leaves. The files are not trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from composer_memprof.analysis.memory.summary import SnapshotSummary, read_summary
from composer_memprof.analysis.module_memory import ModuleMemorySummary, read_memory_summary, summary_of_memory
from composer_memprof.analysis.module_names import sums_by_layer
from composer_memprof.analysis.run_report.figures import CATEGORY, MODULE, PHASE, TOTAL, Figures
from composer_memprof.analysis.run_report.host_file import read_host_file, read_host_summary
from composer_memprof.analysis.typed_json import read_json
from composer_memprof.recorders.host.summary import HostSummary
from composer_memprof.recorders.step_times.found_pauses import FoundPauses
from composer_memprof.vocabulary import MEMORY_CATEGORIES

_MOST_BYTES = 64 << 20
_KEY_OF_TRACKER = {category.tracker: category.key for category in MEMORY_CATEGORIES if category.tracker}


# -- what is read of each file: the keys that are used ----------------------------------------------------------------


@dataclass(frozen=True)
class ModuleActivations:
    """A module in FSDPMemTracker's file."""

    name: str
    own_activation_bytes: int


@dataclass(frozen=True)
class ModuleMemoryFile:
    """FSDPMemTracker's whole file."""

    peak: dict[str, dict[str, int]]
    phases: dict[str, dict[str, dict[str, int]]]
    modules: list[ModuleActivations]
    outside_activation_bytes: int = 0


@dataclass(frozen=True)
class SavedModule:
    """A module in SavedTensorsHook's file."""

    name: str
    bytes: int
    inclusive_bytes: int


@dataclass(frozen=True)
class Checkpoint:
    """What checkpointing one module would free, and how long its forward takes."""

    name: str
    type: str
    frees_bytes: int
    recompute_ms: Optional[float] = None


@dataclass(frozen=True)
class SavedTensorsFile:
    """SavedTensorsHook's file."""

    total_bytes: int
    peak_bytes: int
    modules: list[SavedModule]
    checkpoints: list[Checkpoint] = field(default_factory=list)


@dataclass(frozen=True)
class ModuleFlops:
    """A module in Flops' file."""

    name: str
    own_flops: int
    flops: int
    forward_flops: int


@dataclass(frozen=True)
class FlopsFile:
    """Flops' file."""

    batch_flops: Optional[int]
    hardware_flops: Optional[int]
    mfu: Optional[float]
    hfu: Optional[float]
    modules: Optional[list[ModuleFlops]]


@dataclass(frozen=True)
class MemrayPlace:
    """A line in Memray's statistics, with the bytes that it had allocated at the peak, or has left at the end."""

    function: str
    file: str
    line: int
    bytes: int
    allocations: int = 0


@dataclass(frozen=True)
class MemrayFile:
    """Memray's statistics. ``batches`` of training ended within the window; 0 if that is not known."""

    peak_bytes: int
    left_bytes: int
    at_peak: list[MemrayPlace]
    left: list[MemrayPlace] = field(default_factory=list)
    batches: int = 0


@dataclass(frozen=True)
class GrowingFile:
    """The container that HostRSS found to get longer as the process grows; ``kept_by`` is ``''`` if it found none."""

    kept_by: str
    more: int
    bytes: int


@dataclass(frozen=True)
class BetweenWindowsFile(GrowingFile):
    """The same of the memory that MemorySnapshot records, and how that grows at the ends of batches outside of windows.

    Args:
        on_host (bool): True if the training runs on a CPU: the sizes are of the process.
        memory (int): bytes of the device; 0 for the host.
        size (int): bytes after the batch ``end``.
        grown (int): bytes since the batch ``begin``.
        grown_lately (int): bytes in the later half of the batches.
        begin (int): the batch of the first look.
        end (int): the batch of the last one.
        per_batch (float, optional): the trend of the sizes, in bytes; None after too few batches.
        clear (bool): True if the growth is steady and too large to be noise.
    """

    on_host: bool = False
    memory: int = 0
    size: int = 0
    grown: int = 0
    grown_lately: int = 0
    begin: int = 0
    end: int = 0
    per_batch: Optional[float] = None
    clear: bool = False


@dataclass(frozen=True)
class LoaderSettings:
    """How the DataLoader of training loads."""

    num_workers: int
    prefetch_factor: Optional[int] = None
    persistent_workers: bool = False


@dataclass(frozen=True)
class LoaderStarts:
    """How often the DataLoader was asked to start within a recording, and the seconds that took."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class EpochStarts:
    """How long the first batches of epochs waited for data: in the run's first epoch, and in ``count`` later ones together.

    ``others`` is how long the first batches of all other workers waited.
    """

    first: float = 0.0
    count: int = 0
    seconds: float = 0.0
    others: float = 0.0


@dataclass(frozen=True)
class StepTimesFile:
    """StepTimes' summary.

    ``lines`` are those that take most of each phase, with their shares of the phase; ``batches_with`` counts the batches
    after which an evaluation or a checkpoint came; ``quarters`` has the medians of each quarter of the batches; ``within_phases`` has the shares of the time that callbacks, metrics, the loss
    and the user's own optimizer take in phases that are training's own.
    """

    batches: int
    seconds: dict[str, dict[str, float]]
    share: dict[str, float]
    samples_per_second: Optional[float] = None
    tokens_per_second: Optional[float] = None
    loader: Optional[LoaderSettings] = None
    lines: dict[str, dict[str, float]] = field(default_factory=dict)
    pauses: FoundPauses = field(default_factory=FoundPauses)
    batches_with: dict[str, int] = field(default_factory=dict)
    within_phases: dict[str, float] = field(default_factory=dict)
    clock: str = ''
    loader_starts: LoaderStarts = field(default_factory=LoaderStarts)
    quarters: list[dict[str, float]] = field(default_factory=list)
    microbatches: float = 0.0
    epoch_starts: EpochStarts = field(default_factory=EpochStarts)


# -- reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """How one kind of file is read.

    Args:
        shown (str): of which callback, which is the artifact's kind without the part.
        unit (str): of its figures.
        read (Callable): the content of a file.
        values (Callable): the figures in the content, as in :class:`Figures`; empty if there are none.
    """

    shown: str
    unit: str
    read: Callable[[Path], Any]
    values: Callable[[Any], dict[str, dict[str, float]]]

    def figures(self, content: Any, rank: int, batch: int) -> Optional[Figures]:
        """The figures of a file; None if it has none."""
        values = self.values(content)
        return Figures(self.shown, rank, batch, self.unit, values) if values else None


def _json(kind: type) -> Callable[[Path], Any]:
    return lambda path: read_json(kind, path, f'a file of {kind.__name__.removesuffix("File")}', _MOST_BYTES)


def _of_snapshot(summary: SnapshotSummary) -> dict[str, dict[str, float]]:
    device = summary.largest_device
    if device is None:
        return {}
    return {
        TOTAL: {'peak': device.peak.bytes},
        CATEGORY: dict(device.categories),
        MODULE: dict(device.modules),
        PHASE: dict(device.phases),
    }


def _read_module_memory(path: Path) -> ModuleMemorySummary:
    file: ModuleMemoryFile = _json(ModuleMemoryFile)(path)
    activations = ((module.name, module.own_activation_bytes) for module in file.modules)
    return summary_of_memory(file.peak, file.phases, activations, file.outside_activation_bytes)


def _of_module_memory(summary: ModuleMemorySummary) -> dict[str, dict[str, float]]:
    if not summary.peak:
        return {}
    device = max(summary.peak, key=lambda device: summary.peak[device].get('Total', 0))
    sizes = dict(summary.peak[device])
    total = sizes.pop('Total', 0)
    return {
        TOTAL: {'peak': total},
        CATEGORY: {_KEY_OF_TRACKER.get(name, name): size for name, size in sizes.items()},
        MODULE: dict(summary.activations),
        PHASE: {
            name: sizes[device]['Total'] for name, sizes in summary.phases.items() if 'Total' in sizes.get(device, {})
        },
    }


def _of_saved_tensors(file: SavedTensorsFile) -> dict[str, dict[str, float]]:
    by_layer = sums_by_layer((module.name, module.bytes) for module in file.modules)
    return {TOTAL: {'saved': file.total_bytes}, MODULE: by_layer}


def _of_flops(file: FlopsFile) -> dict[str, dict[str, float]]:
    if file.batch_flops is None:
        return {}
    by_layer = sums_by_layer((module.name, module.own_flops) for module in file.modules or [])
    return {TOTAL: {'flops of a batch': file.batch_flops}, MODULE: by_layer}


def _of_step_times(file: StepTimesFile) -> dict[str, dict[str, float]]:
    medians = {name: times['p50'] for name, times in file.seconds.items() if 'p50' in times}
    total = medians.pop('total', None)
    return {} if total is None else {TOTAL: {'median batch': total}, PHASE: medians}


def _of_host(summary: HostSummary) -> dict[str, dict[str, float]]:
    return {TOTAL: {'peak': summary.rss_peak}} if summary.samples else {}


#: By the kind of the artifact that has the figures. A whole file is read where there is no summary of it.
KINDS = {
    'memory_snapshot.summary': Kind('memory_snapshot', 'bytes', read_summary, _of_snapshot),
    'memory_snapshot.growing': Kind('memory_snapshot.growing', 'bytes', _json(BetweenWindowsFile), lambda file: {}),
    'fsdp_mem_tracker.summary': Kind('fsdp_mem_tracker', 'bytes', read_memory_summary, _of_module_memory),
    'fsdp_mem_tracker.json': Kind('fsdp_mem_tracker', 'bytes', _read_module_memory, _of_module_memory),
    'saved_tensors_hook': Kind('saved_tensors_hook', 'bytes', _json(SavedTensorsFile), _of_saved_tensors),
    'host_rss.summary': Kind('host_rss', 'bytes', read_host_summary, _of_host),
    'host_rss': Kind('host_rss', 'bytes', read_host_file, _of_host),
    'host_rss.growing': Kind('host_rss.growing', 'bytes', _json(GrowingFile), lambda file: {}),
    'step_times.summary': Kind('step_times', 'seconds', _json(StepTimesFile), _of_step_times),
    'memray.statistics': Kind('memray', 'bytes', _json(MemrayFile), lambda file: {}),
    'flops': Kind('flops', 'flops', _json(FlopsFile), _of_flops),
}
