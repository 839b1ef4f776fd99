"""Runs operators on the host, unseen: neither the script's modes nor its random numbers know of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import _disable_current_modes

from composer_memprof.simulated_gpu.values import keys
from composer_memprof.simulated_gpu.values.known import values_of

#: Of the random numbers that are made here.
_random_state: Optional[torch.Tensor] = None


class NotKnownError(Exception):
    """A value is needed that is not known."""


@contextmanager
def computing(*, is_random: bool = False) -> Iterator[None]:
    """Within the block operators run on the host for this package alone."""
    with keys.quiet(), torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
        if torch._C._len_torch_dispatch_stack():
            with _disable_current_modes(), _own_random_numbers(is_random):
                yield
        else:
            with _own_random_numbers(is_random):
                yield


@contextmanager
def _own_random_numbers(is_random: bool) -> Iterator[None]:
    global _random_state
    if not is_random:
        yield
        return
    theirs = torch.get_rng_state()
    if _random_state is not None:
        torch.set_rng_state(_random_state)
    try:
        yield
    finally:
        _random_state = torch.get_rng_state()
        torch.set_rng_state(theirs)


def as_on_host(value: Any, known: Optional[dict[int, torch.Tensor]] = None) -> Any:
    """The arguments of an operator with the host's tensors in place of the device's: by id in ``known``, if that is given.

    Raises:
        NotKnownError: for a tensor whose values are not known.
    """
    if isinstance(value, torch.Tensor):
        if value.device.type == 'cpu':
            return value
        values = known.get(id(value)) if known is not None else values_of(value)
        if values is None:
            raise NotKnownError
        return values
    if isinstance(value, torch.device):
        return torch.device('cpu')
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, (list, tuple)):
        return type(value)(as_on_host(each, known) for each in value)
    if isinstance(value, dict):
        return {name: as_on_host(each, known) for name, each in value.items() if name != 'pin_memory'}
    return value
