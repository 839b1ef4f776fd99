"""Profiling callbacks for training with MosaicML Composer.

The callbacks are imported when first used: the parts that need no torch (``push``, reading manifests) start fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_memprof.callbacks import *  # noqa: F403
    from composer_memprof.recorders.functions.marked import memprofilable as memprofilable

__version__ = '0.1.0'


def __getattr__(name: str) -> Any:
    if name == 'memprofilable':  # without Composer, for code that is used elsewhere too
        return importlib.import_module('composer_memprof.recorders.functions.marked').memprofilable
    if name == '__all__':
        return _exported()
    if name[:1].isupper() and name in _exported():
        return getattr(importlib.import_module('composer_memprof.callbacks'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *_exported()})


def _exported() -> list[str]:
    """The names of the callbacks, as registered, and ``memprofilable``."""
    registry = importlib.import_module('composer_memprof.callbacks.registry')
    return [*(callback.__name__ for callback in registry.CALLBACKS.values()), 'memprofilable']
