"""Which module an operation belongs to: the one whose forward runs, or ran when its backward node was made.

Told of modules as they are entered and left (by ``dispatch``, for one), it answers for the operation that runs now.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Optional

import torch
from torch import nn

from composer_memprof.recorders import dispatch

#: No module of the model's.
OUTSIDE = -1
#: (the number that the next backward node gets, the module that runs from there on)
_Marks = list[tuple[int, int]]


class RunningModule:
    """Follows a training thread through forward, backward and what checkpoints run again.

    Args:
        modules (Sequence[Module]): told apart by their place in it; others count for the module around them.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._numbers = {id(module): number for number, module in reversed(list(enumerate(modules)))}
        self._stack: list[int] = []
        self._forward: _Marks = []
        # Backward nodes that a reentrant checkpoint makes run in a backward pass of their own, right after it.
        self._recomputed: Optional[_Marks] = None
        self._marks_of_pass: dict[int, _Marks] = {}

    def enter(self, module: nn.Module) -> Optional[int]:
        """Returns the module's number, or None if it is no one to be told apart."""
        number = self._numbers.get(id(module))
        if number is None:
            return None
        if not dispatch.in_backward():
            self._recomputed = None
            marks = self._forward
        else:
            self._marks_of_this_pass()
            if self._recomputed is None or not self._stack:
                self._recomputed = []
            marks = self._recomputed
        self._stack.append(number)
        marks.append((dispatch.next_sequence_number(), number))
        return number

    def leave(self, module: nn.Module) -> Optional[int]:
        """Returns the module's number, or None if it was not entered."""
        number = self._numbers.get(id(module))
        if number is None or number not in self._stack:
            return None
        while self._stack.pop() != number:  # one whose forward was cut short
            pass
        marks = self._forward if self._recomputed is None else self._recomputed
        marks.append((dispatch.next_sequence_number(), self._stack[-1] if self._stack else OUTSIDE))
        return number

    def leave_all(self) -> None:
        """Forwards that were cut short are over."""
        self._stack = []

    @property
    def is_inside(self) -> bool:
        """Whether a module's forward runs."""
        return bool(self._stack)

    @property
    def recomputes(self) -> bool:
        """Whether a module's forward runs within a backward pass."""
        return self.is_inside and dispatch.in_backward()

    def current(self) -> int:
        """The number of the module that the operation that runs now belongs to, or ``OUTSIDE``."""
        if self._stack:
            return self._stack[-1]
        if not dispatch.in_backward():
            return OUTSIDE
        sequence = dispatch.backward_sequence_number()
        marks = self._marks_of_this_pass()
        after = bisect_right(marks, sequence, key=lambda mark: mark[0]) if sequence is not None else 0
        # Past the last of them lies what has no number of its own: the accumulation of a parameter's gradient.
        return marks[after - 1][1] if 0 < after < len(marks) else OUTSIDE

    def _marks_of_this_pass(self) -> _Marks:
        current = torch._C._current_graph_task_id()
        if current not in self._marks_of_pass:
            self._marks_of_pass[current] = self._forward if self._recomputed is None else self._recomputed
        return self._marks_of_pass[current]
