"""Imports each callback by itself: what one of them misses in the installed torch or Composer concerns no other."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NoReturn

import torch

from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.messages import log_error, warn
from composer_memprof.recorders.kineto import stacks_are_safe
from composer_memprof.recorders.torch_private import CHECKED


class UnavailableCallback(ProfilingCallback):
    """Takes the place of a callback that does not import. To make one is an ImportError with the reason."""

    #: What went wrong, with the versions it went wrong with.
    reason: str

    def __new__(cls, *arguments: Any, **keywords: Any) -> NoReturn:  # type: ignore[misc]
        raise ImportError(f'{cls.__name__}: {cls.reason}')

    @classmethod
    def why_unavailable(cls) -> list[str]:
        return [cls.reason]


def warn_of_python() -> None:
    """One warning on a Python that is newer than those that the package was checked with. Some installers do not refuse it."""
    if not stacks_are_safe():
        running = '.'.join(map(str, sys.version_info[:2]))
        warn(
            f"Python {running} is newer than those that this package was checked with, 3.10 to 3.12. torch's profiler records "
            'no stacks here, because that would end the process. Use Python 3.12'
        )


@contextlib.contextmanager
def by_itself(name: str, *, kind: str) -> Iterator[None]:
    """Around the import of the callback ``name`` into ``composer_memprof.callbacks``.

    Where that fails, the name stands for an :class:`UnavailableCallback` of the same ``kind``.
    """
    try:
        yield
    except Exception as error:
        log_error(f'{name} does not import')
        reason = (
            f'does not import with torch {torch.__version__} and mosaicml {version("mosaicml")}: '
            f'{type(error).__name__}: {error}. composer_memprof was checked with torch {CHECKED}; '
            'install one of these, or a newer composer_memprof'
        )
        fields = {'kind': kind, 'reason': ' '.join(reason.split()), '__doc__': f'{name} does not import.'}
        setattr(sys.modules['composer_memprof.callbacks'], name, type(name, (UnavailableCallback,), fields))
