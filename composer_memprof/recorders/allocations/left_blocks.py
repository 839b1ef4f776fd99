"""The blocks that several batches have left allocated from the same place in the code, as a leak does."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from composer_memprof.vocabulary import EVAL

#: The frames that tell places apart, innermost first; the fewest batches that leave blocks; how often a block that is made
#: longer and longer has been longer than ever before.
_FRAMES, _BATCHES, _SIZES = 6, 2, 2

_Place = tuple[Any, ...]


def left_by_batches(snapshot: Mapping[str, Any], phases: Sequence[Sequence[Any]], known: set[int]) -> list[int]:
    """The addresses of such blocks, those of the place with most bytes first; also of one block that replaced shorter ones.

    Args:
        snapshot (Mapping): as recorders make it.
        phases (Sequence): rows of (time in microseconds since 1970, batch, phase), in order of time.
        known (set[int]): addresses that are left out: of parameters, gradients and optimizer state.
    """
    times = [row[0] for row in phases]
    # A batch of training, or a phase of an evaluation: that has batches of its own, within one of training.
    batches = [(row[1], number if str(row[2]).startswith(EVAL) else -1) for number, row in enumerate(phases)]
    places: defaultdict[_Place, list[tuple[int, int, tuple[int, int]]]] = defaultdict(list)
    longer: defaultdict[_Place, list[int]] = defaultdict(list)
    for trace in snapshot['device_traces']:
        live: dict[int, tuple[_Place, Mapping[str, Any]]] = {}
        for event in trace:
            if event['action'] == 'alloc':
                place = tuple((frame['filename'], frame['line']) for frame in event.get('frames', ())[:_FRAMES])
                live[event['addr']] = place, event
                if event['size'] > max(longer[place], default=0):
                    longer[place] = [*longer[place][-_SIZES:], event['size']]
            elif event['action'] == 'free_requested':
                live.pop(event['addr'], None)
        for address, (place, event) in live.items():
            row = bisect_right(times, event.get('time_us', -1)) - 1
            if row >= 0 and address not in known:
                places[place].append((address, event['size'], batches[row]))
    left = [
        blocks
        for place, blocks in places.items()
        if len({batch for _, _, batch in blocks}) >= _BATCHES or len(longer[place]) > _SIZES
    ]
    left.sort(key=lambda blocks: -sum(size for _, size, _ in blocks))
    return [address for blocks in left for address in _of_earlier_batches(blocks)]


def _of_earlier_batches(blocks: Sequence[tuple[int, int, tuple[int, int]]]) -> list[int]:
    """The addresses of blocks that the newest batch has not left: a variable may keep those until the next batch."""
    newest = max(batch for _, _, batch in blocks)
    return [address for address, _, batch in blocks if batch < newest] or [address for address, _, _ in blocks]
