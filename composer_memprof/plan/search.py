"""The largest microbatch that fits: searched by trials, not computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from composer_memprof.plan.trial import Trial

#: Where the search ends.
_LARGEST = 1 << 16


def largest_microbatch(config: Mapping[str, Any], base: Trial, microbatch: int, fits: Callable[[Trial], bool]) -> int:
    """The largest number of samples in a microbatch of one rank that fits; 0 if not even one does.

    A microbatch that is larger than the loader's batch needs a larger batch: that is tried too, where the loader has a
    ``batch_size``.

    Args:
        microbatch: where the search starts.
        fits: runs a trial.
    """
    loader = config.get('train_loader')
    batch = loader.get('batch_size') if isinstance(loader, dict) else None
    most = _LARGEST if isinstance(batch, int) else microbatch

    def tried(size: int) -> bool:
        overrides = [f'device_train_microbatch_size={size}']
        if isinstance(batch, int) and size > batch:
            overrides.append(f'train_loader.batch_size={size}')
        return fits(replace(base, overrides=(*base.overrides, *overrides)))

    low, high = 0, microbatch  # low fits, high is to be tried
    while high <= most and tried(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if tried(middle) else (low, middle)
    return low
