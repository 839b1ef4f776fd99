"""What the tests of SavedTensorsHook share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder
from composer_memprof.recorders.saved_tensors.result import SavedTensors


def record(model: nn.Module, run: Callable[[], Any], **more: Any) -> SavedTensors:
    recorder = SavedTensorsRecorder(model, **more)
    with recorder:
        run()
    assert recorder.error is None
    result = recorder.result()()
    for rows in (result.modules, result.operations, result.shapes):
        assert sum(row.bytes for row in rows) == result.total_bytes  # type: ignore[attr-defined]
    return result


def assert_bare(model: nn.Module) -> None:
    for module in model.modules():
        for hooks in (
            *(module._forward_hooks, module._forward_pre_hooks, module._forward_hooks_always_called),
            module._forward_pre_hooks_with_kwargs,
        ):
            assert not hooks
    torch._C._autograd._saved_tensors_hooks_disable('raises where there are hooks')
    torch._C._autograd._saved_tensors_hooks_enable()
    assert torch.autograd.graph.saved_tensors_hooks.__enter__.__module__ == 'torch.autograd.graph'
    assert torch.autograd.graph.disable_saved_tensors_hooks.__module__ == 'torch.autograd.graph'
