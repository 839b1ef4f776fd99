"""Out-of-memory errors: observers that are called before a GPU's error is raised, and parsing an error's message.

torch never removes an observer, so this module attaches one and forwards each call to those who registered here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Optional

import torch

from composer_memprof.recorders.allocations.notes import OutOfMemory
from composer_memprof.recorders.torch_private import cuda_allocator

#: The modules of ``torch_private`` that this one needs.
NEEDS = (cuda_allocator,)
#: Takes the device's index, and in bytes: the size of the request, of the device's memory, and of its free memory.
Observer = Callable[[int, int, int, int], None]

_observers: list[Observer] = []
_attached = False


def add_observer(observer: Observer) -> None:
    """Call ``observer`` when a GPU's memory runs out, before the error is raised and before anything is freed.

    It is called on the thread whose allocation fails, and must not raise.
    """
    global _attached
    if not _attached:
        cuda_allocator.attach_out_of_memory_observer(_forward)
        _attached = True
    if observer not in _observers:
        _observers.append(observer)


def remove_observer(observer: Observer) -> None:
    """Stop calling ``observer``; does nothing if it is not registered."""
    if observer in _observers:
        _observers.remove(observer)


def _forward(device: int, requested: int, total: int, free: int) -> None:
    for observer in list(_observers):
        observer(device, requested, total, free)


def pending_error() -> Optional[BaseException]:
    """The exception that is being handled or that ended the program, if any."""
    return sys.exc_info()[1] or getattr(sys, 'last_exc', None) or getattr(sys, 'last_value', None)


def describe_error(error: Optional[BaseException]) -> str:
    """Type and message of an error; None stands for a signal or an error that was caught."""
    return 'a signal, or an error that was caught' if error is None else f'{type(error).__name__}: {error}'


def is_out_of_memory(error: Optional[BaseException]) -> bool:
    """True if memory of a device or of the host ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def out_of_memory_in(error: Optional[BaseException]) -> Optional[BaseException]:
    """The error, or one that it was raised from, by which memory ran out."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen and not is_out_of_memory(error):
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return error if is_out_of_memory(error) else None


def parse_out_of_memory(error: BaseException) -> OutOfMemory:
    """The error's message, at most 1000 characters, and the requested bytes if the message gives them."""
    message = ' '.join(str(error).split())[:1000]
    requested = re.search(r'tried to allocate (\d+) bytes', message)
    return OutOfMemory(message=message, requested=int(requested.group(1)) if requested else None)
