"""The event tree of a finished profiler session. Memory events need it."""

from __future__ import annotations

from typing import Any

import torch

from composer_memprof.recorders.torch_private import MissingTorchNameError, private, private_attribute

private_attribute('torch._C._autograd._ProfilerResult.experimental_event_tree', seen='2.6 to 2.11', module=__name__)
#: The kinds of events, as their ``tag`` has them: ``Allocation``, ``PyCall``, ``PyCCall``, …
EventType = private('torch._C._profiler._EventType', seen='2.6 to 2.11', module=__name__)


def event_roots(profile: torch.profiler.profile) -> list[Any]:
    """The roots of the tree of events.

    Raises:
        MissingTorchNameError: if the installed torch has no tree of events.
    """
    inner = profile.profiler
    assert inner is not None
    results = inner.kineto_results
    if results is None or not hasattr(results, 'experimental_event_tree'):
        raise MissingTorchNameError(
            f'torch {torch.__version__} has no experimental_event_tree, which memory events need'
        )
    return results.experimental_event_tree()
