"""Views as autograd sees them."""

from __future__ import annotations

import torch

from composer_memprof.recorders.torch_private import private

_is_view = private('torch.Tensor._is_view', seen='2.6 to 2.11', module=__name__)
_version = private('torch.Tensor._version', seen='2.6 to 2.11', module=__name__)


def is_modified_view(tensor: torch.Tensor) -> bool:
    """True if ``tensor`` is a view whose memory was written in place."""
    return _is_view(tensor) and _version.__get__(tensor) > 0
