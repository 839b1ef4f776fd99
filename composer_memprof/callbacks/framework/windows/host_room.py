"""Host memory for what recordings take in the training's process, over all callbacks.

A window is recorded in this process and written by a child. Above the memory limit of the job the kernel kills the training.
So a window begins only if what it is expected to take fits in beside the open ones. While windows are open, the memory
that is left is looked at between batches. If it is getting too little to end and write them, those that take most end early.
"""

from __future__ import annotations

import time
import weakref
from typing import Optional, Protocol

from composer_memprof.artifacts.writing.child.memory import NO_MEMORY, Room, room_for_child
from composer_memprof.callbacks.framework.windows.exclusive import KINETO
from composer_memprof.messages import human_bytes
from composer_memprof.recorders.host_memory import allocated_bytes
from composer_memprof.recorders.kineto import KinetoRecorder

#: Bytes that a window is expected to take at least, to record and to end: with torch's profiler, with torch's profiler that
#: follows Python calls, and other windows. Beside a profiler that follows Python calls, another callback's own calls are
#: followed too: FSDPMemTracker beside MemorySnapshot on a CPU took 0.9 GiB a batch of a small model (torch 2.7.0).
_KINETO_LEAST, _STACKS_LEAST, _LEAST, _BESIDE_STACKS = 64 << 20, 128 << 20, 8 << 20, 1 << 30
#: To end a session of torch's profiler takes so many times what it has allocated until then: 3 to 9 times, and 10 to 48
#: times if it follows Python calls.
_END_OF_KINETO, _END_OF_STACKS = 12, 50
#: Seconds between two looks, with torch's profiler and without it.
_LOOK_S, _LOOK_OF_OTHERS_S = 0.02, 0.5
#: The share of the time that looks may take, with torch's profiler, which needs memory fast, and without it. A look takes
#: 0.2 ms, but 50 ms where malloc has 200,000 free blocks.
_LOOKS_SHARE, _LOOKS_SHARE_OF_OTHERS = 0.2, 0.01


class Recording(Protocol):
    """What this module needs of a callback."""

    resources: frozenset[str]
    kineto: Optional[KinetoRecorder]

    @property
    def session(self) -> object:
        """Callbacks that share a recording return the same object."""


class HostRoom:
    """The open windows of this process, and the memory that is left for them."""

    def __init__(self) -> None:
        self._open: list[weakref.ref[Recording]] = []
        #: Bytes that the last window of a class took, with all that was open beside it.
        self._taken: dict[type, int] = {}
        self._used_at_first = self._used = self._largest_step = 0
        self._allocated_at_first = self._allocated = self._largest_allocation = 0
        self._looked, self._interval = 0.0, _LOOK_OF_OTHERS_S
        #: Seconds of CPU time that the last look took.
        self._took = 0.0
        self._ending: Optional[object] = None
        self._why = ''

    def why_not(self, callback: Recording) -> Optional[str]:
        """Why ``callback`` should not open a window now; None if there is room for it."""
        room = room_for_child()
        if room is None:
            return None
        others = self._others(callback)
        beside = any(_follows_calls(each) for each in others) or (_follows_calls(callback) and bool(others))
        expected = max(self._expected(callback), _BESIDE_STACKS if beside else 0)
        still = max(sum(map(self._expected, others)) - self._recorded(room), 0)
        wanted = room.needed + expected + still
        if room.free >= wanted:
            return None
        return f'{NO_MEMORY}: {human_bytes(room.free)} left {room.of_what}, and recording it may take {human_bytes(wanted)}'

    def opened(self, callback: Recording) -> None:
        """``callback`` has opened a window."""
        room = room_for_child()
        if room is not None and not self._has_kineto():
            self._used_at_first = self._used = room.used
            self._allocated_at_first = self._allocated = allocated_bytes()
            self._largest_step = self._largest_allocation = 0
            self._ending = None
        self._open = [weakref.ref(each) for each in [*self._others(callback), callback]]
        self._interval = _LOOK_S if self._has_kineto() else _LOOK_OF_OTHERS_S

    def closed(self, callback: Recording) -> None:
        """The window of ``callback`` has ended."""
        if all(reference() is not callback for reference in self._open):
            return
        room = room_for_child()
        if room is not None:
            self._taken[type(callback)] = self._recorded(room)
        self._open = [weakref.ref(each) for each in self._others(callback)]
        self._interval = _LOOK_S if self._has_kineto() else _LOOK_OF_OTHERS_S

    def why_end(self, callback: Recording) -> Optional[str]:
        """After a batch: why the window of ``callback`` must end now; None if it may go on."""
        share = _LOOKS_SHARE if self._interval == _LOOK_S else _LOOKS_SHARE_OF_OTHERS
        if time.monotonic() - self._looked > max(self._interval, self._took / share):
            begin = time.thread_time()
            self._look()
            self._took = time.thread_time() - begin
            self._looked = time.monotonic()
        return self._why if self._ending is not None and callback.session is self._ending else None

    def _look(self) -> None:
        room, self._ending = room_for_child(), None
        if room is None:
            return
        self._largest_step = max(self._largest_step, room.used - self._used)
        self._used = room.used
        allocated = allocated_bytes()
        self._largest_allocation = max(self._largest_allocation, allocated - self._allocated)
        self._allocated = allocated
        callbacks = self._others(None)
        factor = max(map(_end_factor, callbacks), default=0)
        # As much as the largest step so far may come before the next look.
        soon = max(allocated - self._allocated_at_first, 0) + self._largest_allocation
        wanted = room.needed + self._largest_step + factor * soon
        if room.free < wanted and callbacks:
            self._ending = max(callbacks, key=_cost).session
            self._why = (
                f'{NO_MEMORY}: {human_bytes(room.free)} left {room.of_what}, and to end and write what is recorded may '
                f'take {human_bytes(wanted)}'
            )

    def _has_kineto(self) -> bool:
        return any(KINETO in each.resources for each in self._others(None))

    def _recorded(self, room: Room) -> int:
        """Bytes that this process has taken since the first of the open windows began."""
        return max(room.used - self._used_at_first, 0) if self._others(None) else 0

    def _others(self, callback: Optional[Recording]) -> list[Recording]:
        found = (reference() for reference in self._open)
        return [each for each in found if each is not None and each is not callback]

    def _expected(self, callback: Recording) -> int:
        return max(self._taken.get(type(callback), 0), _cost(callback))


def _follows_calls(callback: Recording) -> bool:
    return callback.kineto is not None and bool(callback.kineto.arguments.get('with_stack'))


def _cost(callback: Recording) -> int:
    if _follows_calls(callback):
        return _STACKS_LEAST
    return _KINETO_LEAST if KINETO in callback.resources else _LEAST


def _end_factor(callback: Recording) -> int:
    if _follows_calls(callback):
        return _END_OF_STACKS
    return _END_OF_KINETO if KINETO in callback.resources else 1


#: Of this process.
host_room = HostRoom()
