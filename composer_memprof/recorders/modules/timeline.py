"""One device's memory over the ticks of a recording, and what it was as modules were entered and left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np

from composer_memprof.recorders.modules.categories import ACTIVATION
from composer_memprof.recorders.modules.result import TOTAL, DeviceMemory, Memory, ModuleState


class TrackerTimeline:
    """Bytes of each category at each tick.

    Args:
        names (Sequence[str]): of the categories.
        end (int): the tick after the last.
        sizes (ndarray): bytes of each block; the further arrays are as long.
        born (ndarray): the first tick at which the block is live.
        died (ndarray): the first at which it is not, -1 for a block that was never freed.
        categories (ndarray): codes.
        makers (ndarray): numbers of the modules that made the blocks, -1 for none.
    """

    def __init__(
        self,
        names: Sequence[str],
        end: int,
        sizes: np.ndarray,
        born: np.ndarray,
        died: np.ndarray,
        categories: np.ndarray,
        makers: np.ndarray,
    ) -> None:
        self._names = names
        self._sizes, self._born, self._categories, self._makers = sizes, born, categories, makers
        self._died = np.where(died < 0, end, np.minimum(died, end))
        change = np.zeros((len(names), end + 1), dtype=np.int64)
        np.add.at(change, (categories, born), sizes)
        np.subtract.at(change, (categories, self._died), sizes)
        self._bytes = np.cumsum(change, axis=1, out=change)
        self.total = self._bytes[:, :end].sum(axis=0)

    def highest(self, first: int, last: int) -> int:
        """The tick from ``first`` to ``last`` at which the total is highest.

        Of a use without a tick of its own, as another thread's events can leave one, that of its beginning.
        """
        first = min(first, len(self.total) - 1)
        last = max(first, last)
        return first + int(self.total[first : last + 1].argmax())

    def highest_of(self, ticks: np.ndarray) -> int:
        """The one of ``ticks`` at which the total is highest."""
        return int(ticks[self.total[ticks].argmax()])

    def at(self, tick: int) -> Memory:
        """Bytes by category at ``tick``, and their sum."""
        memory = {name: int(size) for name, size in zip(self._names, self._bytes[:, tick])}
        memory[TOTAL] = sum(memory.values())
        return memory

    def activations_by_maker(self, modules: int) -> np.ndarray:
        """Bytes of activations by the module that made them, when all activations together took the most memory.

        The last entry is of those that were made in no module.
        """
        activation = self._names.index(ACTIVATION)
        tick = int(self._bytes[activation].argmax())
        live = (self._categories == activation) & (self._born <= tick) & (tick < self._died)
        by_maker = np.zeros(modules + 1, dtype=np.int64)
        np.add.at(by_maker, self._makers[live], self._sizes[live])  # -1, no module, is the last
        return by_maker


def states_of(
    forward: Sequence[tuple[str, int]],
    backward: Sequence[tuple[int, int]],
    timelines: Mapping[str, TrackerTimeline],
) -> tuple[ModuleState, ...]:
    """The states of one module, in order.

    Args:
        forward (Sequence): (state, tick) as its forward begins and ends.
        backward (Sequence): the first and last tick of each of its backward passes.
        timelines (Mapping): by device.
    """

    def at(tick: int) -> DeviceMemory:
        return {name: line.at(tick) for name, line in timelines.items()}

    def peak(first: int, last: int) -> DeviceMemory:
        return {name: line.at(line.highest(first, last)) for name, line in timelines.items()}

    found: list[tuple[int, str, DeviceMemory]] = []
    entered: Optional[int] = None
    for state, tick in forward:
        found.append((tick, state, at(tick)))
        if state == 'Pre-Forward':
            entered = tick
        elif state == 'Post-Forward' and entered is not None:
            found.insert(len(found) - 1, (tick, 'Peak-Forward', peak(entered, tick)))
            entered = None
    for first, last in backward:
        found.append((first, 'Pre-Backward', at(first - 1)))
        found.append((last, 'Peak-Backward', peak(first, last)))
        found.append((last, 'Post-Backward', at(last)))
    found.sort(key=lambda state: state[0])
    calls: dict[str, int] = {}
    states = []
    for _, state, memory in found:
        calls[state] = calls.get(state, 0) + 1
        states.append(ModuleState(state, calls[state], memory))
    return tuple(states)
