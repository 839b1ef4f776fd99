"""The ranks that write whole files, where all write summaries: of a thousand ranks, the files of a few are enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from composer.utils import dist

from composer_memprof.messages import allowed_are, check_count, must_be

#: The name of the parameter.
NAME = 'files_on_ranks'
#: What the parameter takes.
FilesOnRanks = Union[int, Sequence[int], Mapping[str, Any], None]
_KEYS = ('ranks', 'every')


@dataclass(frozen=True)
class RankSample:
    """Some ranks of a run of any size.

    >>> sample = parse_files_on_ranks({'ranks': [0, -1], 'every': 64})
    >>> [rank for rank in range(200) if sample.has(rank, 200)]
    [0, 64, 128, 192, 199]

    Args:
        ranks (frozenset[int]): these; negative ones count from the last, which is -1.
        every (int, optional): and those that this number divides.
    """

    ranks: frozenset[int] = frozenset()
    every: Optional[int] = None

    def has(self, rank: int, world_size: int) -> bool:
        """Whether ``rank`` of ``world_size`` is one of them."""
        return (
            rank in self.ranks or rank - world_size in self.ranks or (self.every is not None and not rank % self.every)
        )

    def has_this_rank(self) -> bool:
        """Whether this process is one of them.

        Raises:
            ValueError: if this run does not have all of ``ranks``.
        """
        world_size = dist.get_world_size()
        beyond = sorted(rank for rank in self.ranks if not -world_size <= rank < world_size)
        if beyond:
            raise ValueError(f'{NAME}={beyond} are beyond this run, which has ranks 0 to {world_size - 1}')
        return self.has(dist.get_global_rank(), world_size)


def parse_files_on_ranks(value: FilesOnRanks) -> RankSample:
    """Read ``[0, -1]`` or ``{ranks: [0, -1], every: 64}``; None stands for all ranks, ``[]`` for none.

    Raises:
        ValueError: naming the key, the value and what is allowed.
    """
    if value is None:
        return RankSample(every=1)
    if not isinstance(value, Mapping):
        return RankSample(_parse_ranks(value, NAME))
    for key in value:
        if key not in _KEYS:
            raise ValueError(f'{NAME}.{key} is unknown; {allowed_are(_KEYS, str(key))}')
    every = value.get('every')
    if every is not None:
        check_count(f'{NAME}.every', every)
    return RankSample(_parse_ranks(value.get('ranks', ()), f'{NAME}.ranks'), every)


def _parse_ranks(value: Any, name: str) -> frozenset[int]:
    values = [value] if isinstance(value, int) else value
    is_list = isinstance(values, (Sequence, set, frozenset)) and not isinstance(values, (str, bytes))
    if not is_list or not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in values):
        raise must_be(name, 'a list of ranks; -1 is the last one', value)
    return frozenset(values)
