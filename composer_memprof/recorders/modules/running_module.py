"""Find the module of an operation: its forward runs now, or was running when the backward node was made."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Optional

from torch import nn

from composer_memprof.recorders.torch_private import graph_tasks
from composer_memprof.recorders.torch_private.graph_tasks import in_backward

#: The number of an operation that belongs to no module.
OUTSIDE = -1
#: Pairs of the sequence number of the next backward node and the module that runs from there on, in order.
_ModuleChanges = list[tuple[int, int]]


class _Entered(NamedTuple):
    """A module whose forward runs. ``recomputed``: it began within a backward pass, as a checkpoint's does."""

    number: int
    recomputed: bool


class RunningModule:
    """Follows a training thread through forward, backward and the forwards that checkpoints run again.

    Its user calls :meth:`enter` and :meth:`leave` as the forward of a module begins and ends.

    Args:
        modules (Sequence[Module]): a module's number is its index. Operations of other modules count for the module
            around them.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._numbers = {id(module): number for number, module in reversed(list(enumerate(modules)))}
        self._stack: list[_Entered] = []
        self._forward: _ModuleChanges = []
        # A reentrant checkpoint makes backward nodes that run in a backward pass of their own, right after it.
        self._recomputed: Optional[_ModuleChanges] = None
        self._changes_by_pass: dict[int, _ModuleChanges] = {}

    def enter(self, module: nn.Module) -> Optional[int]:
        """Returns the module's number, or None if it is not one of ``modules``."""
        number = self._numbers.get(id(module))
        if number is None:
            return None
        recomputed = in_backward()
        if not recomputed:
            self._recomputed = None
            changes = self._forward
        else:
            self._changes_of_this_pass()
            if self._recomputed is None or not self.recomputes:
                self._recomputed = []
            changes = self._recomputed
        self._stack.append(_Entered(number, recomputed))
        changes.append((graph_tasks.next_sequence_number(), number))
        return number

    def leave(self, module: nn.Module) -> Optional[int]:
        """Returns the module's number, or None if it was not entered."""
        number = self._numbers.get(id(module))
        if number is None or all(entered.number != number for entered in self._stack):
            return None
        entered = self._stack.pop()
        while entered.number != number:  # a submodule's forward that an exception ended
            entered = self._stack.pop()
        if not entered.recomputed:
            self._recomputed = None
        changes = self._forward if self._recomputed is None else self._recomputed
        changes.append((graph_tasks.next_sequence_number(), self._innermost()))
        return number

    def leave_all(self) -> None:
        """Leave all modules, after an exception ended their forwards."""
        self._stack = []

    @property
    def is_inside(self) -> bool:
        """True while a module's forward runs."""
        return bool(self._stack)

    @property
    def recomputes(self) -> bool:
        """True while a forward runs that began within a backward pass; not while a forward takes gradients itself."""
        return bool(self._stack) and self._stack[-1].recomputed

    def current(self) -> int:
        """The number of the module that the operation that runs now belongs to, or ``OUTSIDE``."""
        if self.recomputes or not in_backward():
            return self._innermost()
        sequence = graph_tasks.backward_sequence_number()
        changes = self._changes_of_this_pass()
        after = bisect_right(changes, sequence, key=lambda change: change[0]) if sequence is not None else 0
        # The accumulation of a parameter's gradient has the highest number of all, so it comes after the last change.
        return changes[after - 1][1] if 0 < after < len(changes) else self._innermost()

    def _innermost(self) -> int:
        return self._stack[-1].number if self._stack else OUTSIDE

    def _changes_of_this_pass(self) -> _ModuleChanges:
        current = graph_tasks.current_graph_task_id()
        if current not in self._changes_by_pass:
            self._changes_by_pass[current] = self._forward if self._recomputed is None else self._recomputed
        return self._changes_by_pass[current]
