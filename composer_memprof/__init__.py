"""Profiling callbacks for training with MosaicML Composer.

The names below are imported when first used: the parts that need no torch (``push``, reading manifests) start fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_memprof.callbacks import (
        Flops,
        FSDPMemTracker,
        HostRSS,
        MemorySnapshot,
        MemProfiler,
        Memray,
        SavedTensorsHook,
        TorchProfiler,
        VizTracer,
    )
    from composer_memprof.recorders.functions.marked import memprofilable

__all__ = [
    'FSDPMemTracker',
    'Flops',
    'HostRSS',
    'MemProfiler',
    'MemorySnapshot',
    'Memray',
    'SavedTensorsHook',
    'TorchProfiler',
    'VizTracer',
    'memprofilable',
]
__version__ = '0.1.0'


def __getattr__(name: str) -> Any:
    if name == 'memprofilable':  # without Composer, for code that is used elsewhere too
        return importlib.import_module('composer_memprof.recorders.functions.marked').memprofilable
    if name in __all__:
        return getattr(importlib.import_module('composer_memprof.callbacks'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
