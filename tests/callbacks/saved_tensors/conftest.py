"""After each test of SavedTensorsHook, no hooks are left in torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def no_hooks_are_left() -> Iterator[None]:
    yield
    assert torch._C._autograd._saved_tensors_hooks_is_enabled()
    torch._C._autograd._saved_tensors_hooks_disable('raises where there are hooks')
    torch._C._autograd._saved_tensors_hooks_enable()
