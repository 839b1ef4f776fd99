"""Containers in words, and the bound of one that fills up and then grows no more.

>>> from collections import deque
>>> container_in_words([1, 2])
('a list of 2', 2)
>>> container_in_words(deque([1], maxlen=8))[0]
'a deque of at most 8'
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Optional

from composer_memprof.vocabulary import AT_MOST

CONTAINERS = (list, set, frozenset, dict, deque)
#: The type of a function with ``functools.lru_cache``.
CACHED = functools._lru_cache_wrapper
#: Names under which owners say how many things they hold at most. A length of sequences is none of them.
_BOUNDS: tuple[str, ...] = ('maxsize', 'maxlen', 'max_size', 'max_entries', 'max_items', 'capacity', 'size_limit')
_BOUNDS += ('cache_size', 'buffer_size', 'queue_size')
#: Things of a container whose types are compared.
_COMPARED = 50


def container_in_words(container: Any, owner: Any = None) -> tuple[str, int]:
    """A container in words, and how many things are in it: more than in any other if it is bounded, as its owner may say."""
    kind, size = type(container).__name__, len(container)
    most = getattr(container, 'maxlen', None) or _slots(container)
    most = most or next((each for each in (_bound(container), _bound(owner)) if each and each >= size), None)
    return (f'a {kind}{AT_MOST}{most}', sys.maxsize) if most else (f'a {kind} of {size}', size)


def cache_in_words(function: Any) -> tuple[str, int]:
    """The cache of a function with ``functools.lru_cache``, as :func:`container_in_words`."""
    most, size = function.cache_parameters()['maxsize'], function.cache_info().currsize
    return (f'a dict of {size}', size) if most is None else (f'a dict{AT_MOST}{most}', sys.maxsize)


def has_many_alike(container: Any) -> bool:
    """True if it holds two or more things of one type, such as copies or rows; callbacks in a list are of several."""
    values: Iterable[Any] = container.values() if isinstance(container, Mapping) else container
    kinds = [type(each) for each in islice(list(values), _COMPARED)]
    return len(kinds) > 1 and len(set(kinds)) == 1


def _bound(owner: Any) -> Optional[int]:
    """How many things the owner of a container, or the dict of the owner's attributes, holds at most."""
    attributes = owner if type(owner) is dict else getattr(owner, '__dict__', {})
    if '__builtins__' in attributes or 'training' in attributes:  # a Python module, a module of torch
        return None
    found = [attributes.get(name, attributes.get(f'_{name}')) for name in _BOUNDS]
    return next((value for value in found if type(value) is int and value > 1), None)


def _slots(container: Any) -> Optional[int]:
    """The length of a list that was made as long as it gets, and whose end is not filled yet."""
    return len(container) if type(container) is list and len(container) > 1 and container[-1] is None else None
