"""The callbacks, and the names that YAML knows them by (the same in LLM Foundry, through its entry points)."""

from composer_memprof.callbacks.flops import Flops
from composer_memprof.callbacks.fsdp_mem_tracker import FSDPMemTracker
from composer_memprof.callbacks.host_rss import HostRSS
from composer_memprof.callbacks.mem_profiler import MemProfiler
from composer_memprof.callbacks.memory_snapshot import MemorySnapshot
from composer_memprof.callbacks.memray import Memray
from composer_memprof.callbacks.saved_tensors_hook import SavedTensorsHook
from composer_memprof.callbacks.torch_profiler import TorchProfiler
from composer_memprof.callbacks.viztracer import VizTracer

__all__ = [
    'CALLBACKS',
    'FSDPMemTracker',
    'Flops',
    'HostRSS',
    'MemProfiler',
    'MemorySnapshot',
    'Memray',
    'SavedTensorsHook',
    'TorchProfiler',
    'VizTracer',
]

_ALL = (
    MemorySnapshot,
    TorchProfiler,
    HostRSS,
    SavedTensorsHook,
    FSDPMemTracker,
    MemProfiler,
    Flops,
    Memray,
    VizTracer,
)
CALLBACKS = {f'memprof_{callback.kind}': callback for callback in _ALL}
