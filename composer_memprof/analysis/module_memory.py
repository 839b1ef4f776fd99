"""FSDPMemTracker's ``.summary.json``: its peaks, and the activations of equal layers together, in at most 4096 bytes.

One type, one writer, one reader; the report on a run reads the whole file of an older run into the same type.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from composer_memprof.analysis.module_names import sums_by_layer
from composer_memprof.analysis.typed_json import read_json

#: Raised when a key changes its meaning.
VERSION = 1
#: Of the file; and the largest file that is read, since a newer version may write more.
_MOST_BYTES, _MOST_BYTES_READ = 4096, 1 << 20
#: Most layers, and fewer where names are long or devices many.
_LAYERS = (40, 20, 10, 5, 0)
_NAME, _WHOLE = 200, 3


@dataclass(frozen=True)
class ModuleMemorySummary:
    """A recording of a model's memory in short, in bytes.

    Args:
        peak (dict): by device and category, when the total was highest on each device; ``Total`` is their sum.
        phases (dict): the same for the peak within each phase, without categories that have nothing.
        activations (dict): by layer, live when activations took the most memory, largest first. Layers whose names differ
            in numbers alone are one: ``blocks.*.up``.
        outside_activation_bytes (int): of these, made in no module.
        layers_left_out (int): number of further layers.
        whole (dict): parameters that FSDP left whole on each rank, while it sharded others, by module, largest first.
        version (int): of this format.
    """

    peak: dict[str, dict[str, int]]
    phases: dict[str, dict[str, dict[str, int]]]
    activations: dict[str, int] = field(default_factory=dict)
    outside_activation_bytes: int = 0
    layers_left_out: int = 0
    whole: dict[str, int] = field(default_factory=dict)
    version: int = VERSION

    def as_dict(self) -> dict[str, Any]:
        """As written to JSON."""
        return asdict(self)


def summary_of_memory(
    peak: Mapping[str, Mapping[str, int]],
    phases: Mapping[str, Mapping[str, Mapping[str, int]]],
    own_activations: Iterable[tuple[str, int]],
    outside_activation_bytes: int = 0,
    whole: Mapping[str, int] = MappingProxyType({}),
) -> ModuleMemorySummary:
    """The summary of a recording, at most 4096 bytes as JSON if it has few devices.

    Args:
        peak (Mapping): by device and category.
        phases (Mapping): by phase, device and category.
        own_activations (Iterable): names of modules, and the bytes that each made itself.
        outside_activation_bytes (int): made in no module.
        whole (Mapping): parameters that FSDP left whole, by module, largest first. The largest are kept.
    """
    layers = sums_by_layer((name[:_NAME], size) for name, size in own_activations)
    for most in _LAYERS:
        summary = ModuleMemorySummary(
            peak={device: dict(sizes) for device, sizes in peak.items()},
            phases={
                phase: {device: {name: size for name, size in sizes.items() if size} for device, sizes in of.items()}
                for phase, of in phases.items()
            },
            activations={name: int(size) for name, size in itertools.islice(layers.items(), most)},
            outside_activation_bytes=outside_activation_bytes,
            layers_left_out=max(len(layers) - most, 0),
            whole={name[:_NAME]: size for name, size in itertools.islice(whole.items(), _WHOLE)},
        )
        if len(json.dumps(summary.as_dict(), separators=(',', ':'))) <= _MOST_BYTES:
            break
    return summary


def read_memory_summary(path: Path) -> ModuleMemorySummary:
    """Read a summary from a file that is not trusted. Unknown keys, of a newer version, are ignored.

    Raises:
        FormatError: if it is not a summary.
        OSError: if it can't be read.
    """
    return read_json(ModuleMemorySummary, path, 'a summary of FSDPMemTracker', _MOST_BYTES_READ)
