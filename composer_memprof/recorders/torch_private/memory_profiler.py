"""torch's own sorting of a profiler session's memory into categories over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from composer_memprof.recorders.torch_private import private, private_attribute
from composer_memprof.vocabulary import UNKNOWN

_Timeline = private('torch.profiler._memory_profiler.MemoryProfileTimeline', module=__name__)
_category_indices = private('torch.profiler._memory_profiler._CATEGORY_TO_INDEX', module=__name__)
private_attribute('torch.profiler._memory_profiler.MemoryProfileTimeline._coalesce_timeline', module=__name__)
private_attribute('torch.profiler.profile._memory_profile', module=__name__)


def memory_by_category(
    profile: torch.profiler.profile, device: str
) -> tuple[Sequence[float], Mapping[str, Sequence[int]]]:
    """Times in microseconds, and the bytes of each category at each of them; categories as the vocabulary's keys."""
    times, rows = _Timeline(profile._memory_profile())._coalesce_timeline(device)
    # torch's names in lower case are the vocabulary's keys. A row begins with a column that is no category.
    keys = {
        index + 1: UNKNOWN if category is None else category.name.lower()
        for category, index in _category_indices.items()
    }
    return times, {key: [row[index] for row in rows] for index, key in sorted(keys.items())}
