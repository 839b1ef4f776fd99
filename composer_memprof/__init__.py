"""Profiling callbacks for training with MosaicML Composer.

The names below are imported when first used: the parts that need no torch (``push``, reading manifests) start fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_memprof.callbacks import (
        FSDPMemTracker,
        HostRSS,
        MemorySnapshot,
        Memray,
        SavedTensorsHook,
        TorchProfiler,
        VizTracer,
    )

__all__ = ['FSDPMemTracker', 'HostRSS', 'MemorySnapshot', 'Memray', 'SavedTensorsHook', 'TorchProfiler', 'VizTracer']
__version__ = '0.1.0'


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module('composer_memprof.callbacks'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
