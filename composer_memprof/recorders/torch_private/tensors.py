"""Tensors: their versions, bases and parts, and the address of their storages."""

from __future__ import annotations

from typing import Any

import torch

from composer_memprof.recorders.torch_private import private, private_attribute

#: ``(tensor)``: how many in-place operations have changed it.
version_of = private_attribute('torch.Tensor._version', module=__name__)
#: ``(tensor)``: the tensor that it is a view of, or None.
base_of = private_attribute('torch.Tensor._base', module=__name__)
_is_view = private('torch.Tensor._is_view', module=__name__)
#: ``(storage)``: the address of torch's own object, the same for all Python objects of one storage.
cdata_of = private_attribute('torch.UntypedStorage._cdata', module=__name__)

#: The methods of a sparse COO tensor that return its parts; unlike the public ones they need not be coalesced.
COO_PARTS = ('_indices', '_values')
for _method in COO_PARTS:
    private_attribute(f'torch.Tensor.{_method}', module=__name__)

#: The method by which the class of a wrapper, such as DTensor, is recognized.
FLATTEN = '__tensor_flatten__'


def is_modified_view(tensor: torch.Tensor) -> bool:
    """True if ``tensor`` is a view whose memory was written in place."""
    return _is_view(tensor) and version_of(tensor) > 0


def inner_tensors(wrapper: Any) -> list[torch.Tensor]:
    """The tensors that a wrapper holds. From torch 2.12 on a DTensor lists its device mesh beside them."""
    held = [getattr(wrapper, name) for name in wrapper.__tensor_flatten__()[0]]
    return [each for each in held if isinstance(each, torch.Tensor)]


def is_wrapper(tensor: torch.Tensor) -> bool:
    """True for a tensor that wraps others."""
    return hasattr(type(tensor), FLATTEN) or hasattr(tensor, '_local_tensor')


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a DTensor; any other tensor itself."""
    return getattr(tensor, '_local_tensor', tensor)
