"""The iterator of torch's DataLoader: how long each ``next`` takes."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, Optional

from composer_memprof.recorders.torch_private import private

_ITERATOR = private('torch.utils.data.dataloader._BaseDataLoaderIter', module=__name__)

_listeners: list[Callable[[float], None]] = []
_starters: list[Callable[[], None]] = []
_original: Any = None
_timed: Any = None
#: Gives the iterator whose ``next`` was called last, or None.
_newest: Optional[Callable[[], Any]] = None


def add_listener(listener: Callable[[float], None], starter: Optional[Callable[[], None]] = None) -> None:
    """Call ``listener`` with the seconds of each ``next`` of each DataLoader, on the thread that called it.

    Args:
        listener (Callable): takes the seconds.
        starter (Callable, optional): is called before each ``next``.
    """
    global _original, _timed
    if not _listeners:
        original = _original = _ITERATOR.__next__

        def timed_next(self: Any) -> Any:
            global _newest
            _newest = weakref.ref(self)
            for each in list(_starters):
                each()
            began = time.perf_counter()
            try:
                return original(self)
            finally:
                seconds = time.perf_counter() - began
                for heard in list(_listeners):
                    heard(seconds)

        _ITERATOR.__next__ = _timed = timed_next
    _listeners.append(listener)
    if starter is not None:
        _starters.append(starter)


def newest_dataset() -> Any:
    """The data set of the DataLoader that was read last, while there are listeners; None if it is gone."""
    return None if _newest is None else getattr(_newest(), '_dataset', None)


def remove_listener(listener: Callable[[float], None], starter: Optional[Callable[[], None]] = None) -> None:
    """Call ``listener`` and ``starter`` no more. After the last listener the iterator is as it was."""
    if starter in _starters:
        _starters.remove(starter)
    if listener in _listeners:
        _listeners.remove(listener)
        if not _listeners and _ITERATOR.__next__ is _timed:  # another tool may have replaced it meanwhile
            _ITERATOR.__next__ = _original
