"""Names of modules, with those of equal layers taken together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

_NUMBER = re.compile(r'(?<![^.])\d+(?![^.])')


def layer_name(name: str) -> str:
    """A module's name with each number that is a part of it replaced by ``*``.

    >>> layer_name('blocks.12.attention.0'), layer_name('conv1.weight')
    ('blocks.*.attention.*', 'conv1.weight')
    """
    return _NUMBER.sub('*', name)


def sums_by_layer(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The sums of (module, value) by :func:`layer_name`, largest first, without the model itself and zeros.

    >>> sums_by_layer([('blocks.0', 3), ('blocks.1', 4), ('head', 1), ('', 9)])
    {'blocks.*': 7, 'head': 1}
    """
    sums: defaultdict[str, float] = defaultdict(int)
    for name, value in values:
        if name:
            sums[layer_name(name)] += value
    return {name: sums[name] for name in sorted(sums, key=lambda name: (-sums[name], name)) if sums[name]}
