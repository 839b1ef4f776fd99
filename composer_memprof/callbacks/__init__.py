"""The callbacks, one file each. Two lines here register a callback: ``composer_memprof`` exports it, and YAML knows it.

``framework`` is what they share; ``parts`` has pieces of single callbacks.
"""

from composer_memprof.callbacks.framework.importing import by_itself as _by_itself
from composer_memprof.callbacks.framework.importing import warn_of_python as _warn_of_python

_warn_of_python()

with _by_itself('Flops', kind='flops'):
    from composer_memprof.callbacks.flops.callback import Flops as Flops
with _by_itself('FSDPMemTracker', kind='fsdp_mem_tracker'):
    from composer_memprof.callbacks.fsdp_mem_tracker import FSDPMemTracker as FSDPMemTracker
with _by_itself('HostRSS', kind='host_rss'):
    from composer_memprof.callbacks.host_rss import HostRSS as HostRSS
with _by_itself('MemProfiler', kind='mem_profiler'):
    from composer_memprof.callbacks.mem_profiler.callback import MemProfiler as MemProfiler
with _by_itself('MemorySnapshot', kind='memory_snapshot'):
    from composer_memprof.callbacks.memory_snapshot.callback import MemorySnapshot as MemorySnapshot
with _by_itself('Memray', kind='memray'):
    from composer_memprof.callbacks.memray import Memray as Memray
with _by_itself('SavedTensorsHook', kind='saved_tensors_hook'):
    from composer_memprof.callbacks.saved_tensors_hook import SavedTensorsHook as SavedTensorsHook
with _by_itself('StepTimes', kind='step_times'):
    from composer_memprof.callbacks.step_times import StepTimes as StepTimes
with _by_itself('TorchProfiler', kind='torch_profiler'):
    from composer_memprof.callbacks.torch_profiler import TorchProfiler as TorchProfiler
with _by_itself('VizTracer', kind='viztracer'):
    from composer_memprof.callbacks.viztracer import VizTracer as VizTracer
