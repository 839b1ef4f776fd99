"""The callbacks, one file each. A line here registers a callback: ``composer_memprof`` exports it, and YAML knows it.

``framework`` is what they share; ``parts`` has pieces of single callbacks.
"""

from composer_memprof.callbacks.flops import Flops as Flops
from composer_memprof.callbacks.fsdp_mem_tracker import FSDPMemTracker as FSDPMemTracker
from composer_memprof.callbacks.host_rss import HostRSS as HostRSS
from composer_memprof.callbacks.mem_profiler import MemProfiler as MemProfiler
from composer_memprof.callbacks.memory_snapshot import MemorySnapshot as MemorySnapshot
from composer_memprof.callbacks.memray import Memray as Memray
from composer_memprof.callbacks.saved_tensors_hook import SavedTensorsHook as SavedTensorsHook
from composer_memprof.callbacks.step_times import StepTimes as StepTimes
from composer_memprof.callbacks.torch_profiler import TorchProfiler as TorchProfiler
from composer_memprof.callbacks.viztracer import VizTracer as VizTracer
