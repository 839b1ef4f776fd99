"""What keeps the blocks of a place in the code, as the recorder found it."""

from __future__ import annotations

import collections
from collections.abc import Mapping

from composer_memprof.analysis.memory.findings.attribution import Attribution
from composer_memprof.vocabulary import AT_MOST


def keeper_of(place: int, attribution: Attribution, count: int, keepers: Mapping[int, str]) -> str:
    """What keeps most of the place's blocks for which that is known; a container with a limit, if one keeps any."""
    blocks = attribution.blocks
    live = blocks.allocated_after(count)
    addresses = blocks.address[live[attribution.place[live] == place]].tolist()
    found = collections.Counter(keepers[address] for address in addresses if address in keepers)
    return max(found, key=lambda words: (AT_MOST in words, found[words]), default='')
