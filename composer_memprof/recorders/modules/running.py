"""Whether the forward pass of a model runs, by the stack of this thread."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Optional

import torch

#: The function that calls a module's forward.
_CALL = '_call_impl'


def is_in_forward(model: torch.nn.Module) -> bool:
    """True if this thread runs the forward of the model, or of a module in it."""
    modules = set(map(id, model.modules()))
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _CALL and id(frame.f_locals.get('self')) in modules:
            return True
        frame = frame.f_back
    return False
