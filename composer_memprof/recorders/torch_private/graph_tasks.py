"""Backward passes: whether one runs on this thread, its number, and the node that runs now."""

from __future__ import annotations

from typing import Any, Optional

from composer_memprof.recorders.torch_private import private, private_attribute

#: ``()``: the number of this thread's backward pass, or -1 where none runs.
current_graph_task_id = private('torch._C._current_graph_task_id', module=__name__)
#: ``()``: the backward node that runs on this thread, or None.
current_autograd_node = private('torch._C._current_autograd_node', module=__name__)
#: ``()``: the sequence number of the next operation that is recorded for a backward pass.
next_sequence_number = private('torch._C._autograd._get_sequence_nr', module=__name__)
private_attribute('torch._C._functions.AccumulateGrad._sequence_nr', module=__name__)


def in_backward() -> bool:
    """True if this thread runs a backward pass."""
    return current_graph_task_id() != -1


def backward_sequence_number() -> Optional[int]:
    """Of the backward node that runs now: what :func:`next_sequence_number` returned before its forward operation."""
    node = current_autograd_node()
    return None if node is None else sequence_number(node)


def sequence_number(node: Any) -> int:
    """Of the forward operation that made a node of a graph: the later, the larger, on one thread."""
    return int(node._sequence_nr())
