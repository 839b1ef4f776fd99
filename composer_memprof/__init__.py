"""Profiling callbacks for training with MosaicML Composer.

The callbacks are imported when first used: the parts that need no torch (``push``, reading manifests) start fast.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_memprof.callbacks import *  # noqa: F403
    from composer_memprof.interface.planning import plan as plan
    from composer_memprof.interface.simulating import simulate as simulate
    from composer_memprof.interface.snapshots import load_snapshot as load_snapshot
    from composer_memprof.loop.run import profile as profile
    from composer_memprof.messages import MemprofError as MemprofError
    from composer_memprof.recorders.functions.marked import memprofilable as memprofilable

__version__ = '0.2.0'

#: What there is beside the callbacks, and the modules that it is imported from. Only ``profile`` imports Composer, and only
#: that and ``memprofilable`` import torch.
_OTHERS = {
    'MemprofError': 'composer_memprof.messages',
    'load_snapshot': 'composer_memprof.interface.snapshots',
    'memprofilable': 'composer_memprof.recorders.functions.marked',
    'plan': 'composer_memprof.interface.planning',
    'profile': 'composer_memprof.loop.run',
    'simulate': 'composer_memprof.interface.simulating',
}


def __getattr__(name: str) -> Any:
    if name in _OTHERS:
        return getattr(_import(_OTHERS[name]), name)
    if name == '__all__':
        return _exported()
    if name[:1].isupper():
        callback = getattr(_import('composer_memprof.callbacks'), name, None)
        if callback is not None:
            return callback
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except AttributeError as error:  # Python would say no more than that there is no such name
        raise ImportError(f'{module} does not import: AttributeError: {error}') from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_exported()})


def _exported() -> list[str]:
    """The names of the callbacks, from the installed entry points, and of the others. Imports no torch."""
    from importlib.metadata import entry_points  # here, because it takes as long as all else that this module imports

    installed = [point.value.partition(':') for point in entry_points(group='llmfoundry_callbacks')]
    return [*(name for module, _, name in installed if module == __name__), *_OTHERS]
