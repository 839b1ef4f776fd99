"""The slope along the direction in which L-BFGS searches: it descends, so the search goes on and fills its history.

A guess is positive, and to ``torch.optim.LBFGS`` a slope that is not negative means that it has arrived.
"""

from __future__ import annotations

import sys
from typing import Any, Optional

import torch

from composer_memprof.simulated_gpu.values import host, traceable
from composer_memprof.simulated_gpu.values.known import EXPECTED, entry_of, is_plain, know

_MODULE = 'torch.optim.lbfgs'
#: Before a step along the direction, and where that step ends, so flat by then that a line search takes it.
_BEFORE, _AFTER = -0.5, -0.1


def install() -> None:
    """See each product of two vectors that is made by L-BFGS."""
    torch.Tensor.dot = traceable.in_place_of(torch.Tensor.dot, _dot)  # type: ignore[method-assign]


def _dot(original: Any, arguments: Any, keywords: Any) -> Any:
    result = original(*arguments, **keywords)
    slope = _slope(arguments[-1]) if is_plain(result) and entry_of(result) is None else None
    if slope is not None:
        with host.computing():
            know(result, torch.tensor(slope, dtype=result.dtype), EXPECTED)
    return result


def _slope(vector: Any) -> Optional[float]:
    """That along ``vector``, where the code that is running calls it its direction ``d``."""
    frame = sys._getframe(3)  # of what called ``dot``
    if frame.f_globals.get('__name__') != _MODULE or frame.f_locals.get('d') is not vector:
        return None
    return _AFTER if frame.f_code.co_name == '_strong_wolfe' else _BEFORE
