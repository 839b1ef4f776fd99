"""The callbacks by their names in YAML, the same in this package's runner and, by its entry points, in LLM Foundry."""

from composer_memprof import callbacks
from composer_memprof.callbacks.framework.base import ProfilingCallback

#: Each class that ``callbacks/__init__.py`` imports, by ``memprof_`` and its ``kind``.
CALLBACKS: dict[str, type[ProfilingCallback]] = {
    f'memprof_{each.kind}': each
    for each in vars(callbacks).values()
    if isinstance(each, type) and issubclass(each, ProfilingCallback)
}
