"""Profiling callbacks for training with MosaicML Composer.

The callbacks are imported when first used: the parts that need no torch (``push``, reading manifests) start fast.
"""

import importlib
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_memprof.analysis.snapshot.loading import load_snapshot as load_snapshot
    from composer_memprof.callbacks import *  # noqa: F403
    from composer_memprof.loop.run import profile as profile
    from composer_memprof.recorders.functions.marked import memprofilable as memprofilable

__version__ = '0.2.0'

#: The functions, and the modules that they are imported from. ``load_snapshot`` and ``memprofilable`` need no Composer, and
#: ``load_snapshot`` no torch.
_FUNCTIONS = {
    'load_snapshot': 'composer_memprof.analysis.snapshot.loading',
    'memprofilable': 'composer_memprof.recorders.functions.marked',
    'profile': 'composer_memprof.loop.run',
}


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(_import(_FUNCTIONS[name]), name)
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
    """The names of the callbacks, from the installed entry points, and of the functions. Imports no torch."""
    installed = [point.value.partition(':') for point in entry_points(group='llmfoundry_callbacks')]
    return [*(name for module, _, name in installed if module == __name__), *_FUNCTIONS]
