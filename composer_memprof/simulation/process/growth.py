"""Within the simulated process: whether memory grows from step to step, as where a list keeps outputs on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: Of this many steps the last ones are looked at, and more steps than asked for are run for it.
STEPS_SEEN = 6


class MemoryOfSteps:
    """What was allocated on each device at the end of each step."""

    def __init__(self) -> None:
        self._ends: list[list[int]] = []

    def step_ends(self) -> None:
        self._ends.append([torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count())])

    def growth(self) -> int:
        """Bytes with each step on the device that grows most; 0 if none does, or too few steps were made."""
        return max((growth(each) for each in zip(*self._ends)), default=0)


def growth(ends: Sequence[int]) -> int:
    """Bytes with each step, by what was allocated at the end of each; the first one makes the optimizer's state.

    What grew once has not grown again in the last half of the steps that are seen. What is freed at times does not grow.

    >>> growth([10, 30, 35, 40]), growth([10, 30, 30, 30]), growth([10, 20, 30, 15]), growth([1, 9, 9, 9, 9, 9, 9])
    (5, 0, 0, 0)
    """
    later = ends[1:][-STEPS_SEEN:] if len(ends) > STEPS_SEEN else ends[1:] if len(ends) > 3 else ends
    if len(later) < 3 or any(after < before for before, after in zip(later, later[1:])):
        return 0
    last = later[len(later) // 2 - 1 :]
    return (last[-1] - last[0]) // (len(last) - 1)
