"""Custom autograd Functions: recognize the stack frame of their ``apply``."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Optional

import torch

#: The code of ``torch.autograd.Function.apply``: a frame's ``f_code`` is compared with it. None from torch 2.14 on, where
#: ``apply`` is written in C and leaves no frame; the name of the backward node has to do there.
APPLY_CODE: Optional[CodeType] = getattr(getattr(torch.autograd.Function.apply, '__func__', None), '__code__', None)


def function_name(frame: FrameType) -> str:
    """The class name of the Function, for a frame that runs ``apply``."""
    return frame.f_locals['cls'].__name__
