"""Custom autograd Functions: which one's ``apply`` a Python frame runs."""

from __future__ import annotations

from types import FrameType

from composer_memprof.recorders.torch_private import private

#: The code of ``torch.autograd.Function.apply``: a frame's ``f_code`` is compared with it. Gone from torch 2.14.
APPLY_CODE = private('torch.autograd.Function.apply.__func__.__code__', seen='2.7 to 2.11', module=__name__)


def function_name(frame: FrameType) -> str:
    """The name of the Function whose ``apply`` the frame runs."""
    return frame.f_locals['cls'].__name__
