"""Custom autograd Functions: recognize the stack frame of their ``apply``."""

from __future__ import annotations

from types import FrameType

from composer_memprof.recorders.torch_private import private

#: The code of ``torch.autograd.Function.apply``: a frame's ``f_code`` is compared with it. Gone from torch 2.14.
APPLY_CODE = private('torch.autograd.Function.apply.__func__.__code__', seen='2.7 to 2.11', module=__name__)


def function_name(frame: FrameType) -> str:
    """The class name of the Function, for a frame that runs ``apply``."""
    return frame.f_locals['cls'].__name__
