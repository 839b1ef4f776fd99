"""Where values begin on the device: constants, ranges and random numbers. The host computes the small ones too.

Functions of Python are replaced, not torch's operators: within a kernel, what an operator fills with zeros is written to
by others that nobody sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device

from composer_memprof.messages import log_error
from composer_memprof.simulated_gpu.values import host, traceable
from composer_memprof.simulated_gpu.values.known import (
    REAL,
    entry_before_write,
    forget,
    is_plain,
    is_small,
    know,
    view_of,
    wrote,
)

_CONSTANTS = ('zeros', 'ones', 'full', 'arange', 'range', 'linspace', 'logspace', 'eye', 'tril_indices', 'triu_indices')
_RANDOM = ('rand', 'randn', 'randint', 'randperm', 'normal')
_LIKE = ('zeros_like', 'ones_like', 'full_like')
_RANDOM_LIKE = ('rand_like', 'randn_like', 'randint_like')
_NEW = ('new_zeros', 'new_ones', 'new_full')
_FILL = ('zero_', 'fill_')
_RANDOM_FILL = ('uniform_', 'normal_', 'random_', 'bernoulli_', 'exponential_', 'cauchy_', 'geometric_', 'log_normal_')
_DATA = ('tensor', 'as_tensor')


def install() -> None:
    """See each tensor that these make or fill."""
    _device._device_constructors()  # torch keeps the functions themselves, which a device's context looks for
    for name in (*_CONSTANTS, *_RANDOM):
        _see(torch, name, _made, is_random=name in _RANDOM)
    for name in (*_LIKE, *_RANDOM_LIKE):
        _see(torch, name, _made_like, is_random=name in _RANDOM_LIKE)
    for name in _NEW:
        _see(torch.Tensor, name, _made_like)
    for name in (*_FILL, *_RANDOM_FILL):
        _see(torch.Tensor, name, _filled, is_random=name in _RANDOM_FILL)
    for name in _DATA:
        _see(torch, name, _made_of_data)
    _see(torch.Tensor, 'new_tensor', _made_of_data)


def _see(where: Any, name: str, keep: Callable[..., None], *, is_random: bool = False) -> None:
    """Call ``keep(original, result, arguments, keywords)`` after each call that leaves a small tensor on the device."""

    def function(original: Any, arguments: Any, keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        if is_plain(result):
            if not result.numel() or not is_small(result.untyped_storage().nbytes(), result.dtype):
                forget(result)
                return result
            named = {key: each for key, each in keywords.items() if key not in ('device', 'pin_memory', 'generator')}
            try:
                with host.computing(is_random=is_random):
                    keep(original, result, arguments, named)
            except Exception:  # what the host can't compute is not known
                log_error(f'what torch.{name} made could not be computed on the host')
                forget(result)
        return result

    setattr(where, name, traceable.in_place_of(getattr(where, name), function))


def _made(original: Any, result: torch.Tensor, arguments: Any, keywords: Any) -> None:
    given, named = host.as_on_host(arguments), host.as_on_host(keywords)
    know(result, original(*given, **{**named, 'requires_grad': False, 'out': None, 'device': 'cpu'}), REAL)


def _made_like(original: Any, result: torch.Tensor, arguments: Any, keywords: Any) -> None:
    like = torch.empty(result.shape, dtype=result.dtype)
    named = {key: each for key, each in keywords.items() if key not in ('memory_format', 'requires_grad', 'input')}
    know(result, original(like, *host.as_on_host(arguments[1:]), **host.as_on_host(named)), REAL)


def _filled(original: Any, result: torch.Tensor, arguments: Any, keywords: Any) -> None:
    before = entry_before_write(result)
    given, named = host.as_on_host(arguments[1:]), host.as_on_host(keywords)
    if before is None:
        know(result, original(torch.empty(result.shape, dtype=result.dtype), *given, **named), REAL)
    else:
        original(view_of(before, result), *given, **named)
        wrote(result, REAL)


def _made_of_data(original: Any, result: torch.Tensor, arguments: Any, keywords: Any) -> None:
    del original  # unused
    data = arguments[-1] if arguments else keywords['data']
    if not isinstance(data, torch.Tensor):
        know(result, torch.tensor(data, dtype=result.dtype, device='cpu'), REAL)
