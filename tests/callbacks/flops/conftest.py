"""After each test of Flops, nothing of it is left in torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    torch._dynamo.reset()  # so that Flops sees a process that has compiled nothing
    yield
    assert not _python_dispatch._get_current_dispatch_mode_stack()
    assert not nn.modules.module._global_forward_hooks
    assert torch._dynamo.eval_frame._stance.stance == 'default'
    assert not any(
        'composer_memprof' in str(getattr(key, '__module__', ''))
        for operator in torch._ops._higher_order_ops.values()
        for key in operator.python_key_table
    )
