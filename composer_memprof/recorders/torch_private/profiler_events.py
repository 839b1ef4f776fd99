"""The event tree of a finished profiler session: allocations, and the Python calls around them."""

from __future__ import annotations

from typing import Any

import torch

from composer_memprof.recorders.torch_private import MissingTorchNameError, private, private_attribute

#: Enumeration with ``Allocation``, ``PyCall`` and ``PyCCall``, among others: compared with an event's ``tag``.
EventType = private('torch._C._profiler._EventType', module=__name__)
private_attribute('torch._C._autograd._ProfilerResult.experimental_event_tree', module=__name__)
#: The fields of events that are read, by the class that has them.
_FIELDS = {
    '_ProfilerEvent': ('tag', 'children', 'start_time_ns', 'extra_fields'),
    '_ExtraFields_Allocation': ('ptr', 'alloc_size', 'device'),
    '_ExtraFields_PyCall': ('caller', 'callsite', 'module'),
    '_ExtraFields_PyCCall': ('caller',),
    '_NNModuleInfo': ('self_ptr',),
    '_PyFrameState': ('file_name', 'line_number', 'function_name'),
}
for _class, _fields in _FIELDS.items():
    for _field in _fields:
        private_attribute(f'torch._C._profiler.{_class}.{_field}', module=__name__)


def event_roots(profile: torch.profiler.profile) -> list[Any]:
    """The roots of the tree.

    Raises:
        MissingTorchNameError: if the session has no tree.
    """
    inner = profile.profiler
    assert inner is not None
    results = inner.kineto_results
    if results is None or not hasattr(results, 'experimental_event_tree'):
        raise MissingTorchNameError(
            f'torch {torch.__version__} has no experimental_event_tree, which memory events need'
        )
    return results.experimental_event_tree()
