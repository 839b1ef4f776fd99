"""The moment in which a GPU's memory runs out: before the exception is raised, and before anything is freed.

torch takes observers and never lets go of them, so it gets a single one, which tells whoever listens at the time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Optional

import torch

#: Takes device, bytes asked for, bytes of the device, bytes free on it.
Listener = Callable[[int, int, int, int], None]

_listeners: list[Listener] = []
_attached = False


def listen(listener: Listener) -> None:
    """Call ``listener``, which must not raise, on the thread whose allocation fails.

    Through ``torch._C._cuda_attach_out_of_memory_observer`` (private in torch; read on 2.6 to 2.7).
    """
    global _attached
    if not _attached:
        torch._C._cuda_attach_out_of_memory_observer(_tell)  # type: ignore[attr-defined]
        _attached = True
    if listener not in _listeners:
        _listeners.append(listener)


def leave(listener: Listener) -> None:
    if listener in _listeners:
        _listeners.remove(listener)


def _tell(device: int, requested: int, total: int, free: int) -> None:
    for listener in list(_listeners):
        listener(device, requested, total, free)


def pending_error() -> Optional[BaseException]:
    """The exception that is being handled, or that ended the program; None where there is none to be seen."""
    return sys.exc_info()[1] or getattr(sys, 'last_exc', None) or getattr(sys, 'last_value', None)


def describe(error: Optional[BaseException]) -> str:
    return 'ended by a signal, or by an error that was caught' if error is None else f'{type(error).__name__}: {error}'


def is_out_of_memory(error: Optional[BaseException]) -> bool:
    """Whether memory, of a device or of the host, could not be had."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def facts_of(error: BaseException) -> dict[str, Any]:
    """What the message of an out-of-memory error tells: ``message``, and ``requested`` in bytes where it is there."""
    message = ' '.join(str(error).split())[:1000]
    asked = re.search(r'tried to allocate (\d+) bytes', message)
    return {'message': message, **({'requested': int(asked.group(1))} if asked else {})}
