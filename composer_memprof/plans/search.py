"""The largest microbatch that fits: searched by trials, not computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Optional

from composer_memprof.plans.trial import Outcome, Trial

#: Where the search ends.
_LARGEST = 1 << 16


@dataclasses.dataclass(frozen=True)
class Largest:
    """The end of a search.

    Attributes:
        samples: in the largest microbatch of one rank that was found to fit; 0 if not even one sample does.
        limit: what keeps larger ones from running if it is not the memory, in one line; else ``''``.
        next_tried: the smallest of those tried that does not run; None if it was ``limit`` that ended the search.
    """

    samples: int
    limit: str
    next_tried: Optional[int] = None


def largest_microbatch(
    config: Mapping[str, Any],
    base: Trial,
    microbatch: int,
    run: Callable[[Trial], Outcome],
    fits_at_start: bool = False,
) -> Largest:
    """Search the largest microbatch, to a sixteenth of its size.

    A microbatch that is larger than the loader's batch needs a larger batch: that is tried too, where the loader has a
    ``batch_size``.

    Args:
        microbatch: where the search starts.
        run: runs a trial.
        fits_at_start: a trial has shown that ``microbatch`` fits.
    """
    loader = config.get('train_loader')
    batch = loader.get('batch_size') if isinstance(loader, dict) else None
    most = _LARGEST if isinstance(batch, int) else microbatch
    limits = {most + 1: '' if isinstance(batch, int) else "the loader's batch"}

    def fits(size: int) -> bool:
        overrides = [f'device_train_microbatch_size={size}']
        if isinstance(batch, int) and size > batch:
            overrides.append(f'train_loader.batch_size={size}')
        outcome = run(replace(base, overrides=(*base.overrides, *overrides)))
        limits[size] = outcome.error or ('the data' if outcome.fits and outcome.microbatch < size else '')
        return outcome.fits and not limits[size]

    low, high = 0, max(microbatch, 1)  # low fits, high is to be tried
    if fits_at_start:
        low, high = high, 2 * high
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Largest(low, limits[high], high if high <= most else None)
