"""The purpose of blocks by the sizes of the gradients: a parameter is as large as its gradient.

A gradient is allocated in the recording, its parameter long before it. So blocks from before the recording, which have
no stack, are settled by counting. Sizes are compared as requested, rounded up to the allocator's 512 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.memory.blocks.lifetimes import Lifetimes

_UNIT = 512
#: Bytes of the step of a parameter, where an optimizer keeps it on the device.
_STEP = 4


@dataclass(frozen=True)
class GradientSizes:
    """The blocks from before the recording that have the size of a gradient: bool arrays, one row for each block.

    Args:
        parameter (ndarray): exactly one block exists for each gradient of its size.
        one_of_several (ndarray): more blocks than gradients exist. As many as there are gradients are chosen: their sum
            is that of the parameters, though other blocks may be the parameters.
        state (ndarray): exactly two more blocks exist for each gradient of their size, as Adam keeps.
        replaced (ndarray): freed by an optimizer; at least two blocks for each gradient of their size, beside the
            parameter.
        other (ndarray): further blocks of a gradient's size.
        steps (bool): a block with a number exists for each gradient, as of a fused Adam's steps.
    """

    parameter: np.ndarray
    one_of_several: np.ndarray
    state: np.ndarray
    replaced: np.ndarray
    other: np.ndarray
    steps: bool


def units(requested: np.ndarray) -> np.ndarray:
    """The size of a block in units of the allocator, int64."""
    return -(-requested // _UNIT)


def match_gradient_sizes(
    blocks: Lifetimes, gradient: np.ndarray, kept: np.ndarray, replaced: np.ndarray
) -> GradientSizes:
    """Count the blocks of each gradient's size.

    Args:
        blocks (Lifetimes): the blocks.
        gradient (ndarray): bool, True for blocks that are certainly gradients.
        kept (ndarray): bool, True for blocks from before the recording that were not freed.
        replaced (ndarray): bool, True for blocks from before the recording that an optimizer freed.
    """
    size = units(blocks.requested)
    sizes = np.unique(size[gradient])
    at_once = _most_at_once(sizes, size[gradient], blocks.start[gradient], blocks.freed[gradient])
    place = np.minimum(np.searchsorted(sizes, size), max(len(sizes) - 1, 0))
    same = sizes[place] == size if len(sizes) else np.zeros(len(size), dtype=bool)

    def count(chosen: np.ndarray) -> np.ndarray:
        return np.bincount(place[chosen], minlength=max(len(sizes), 1))[place]

    here, freed = kept & same, replaced & same
    most, kept_count, freed_count = at_once[place], count(here), count(freed)
    # An optimizer that replaces one tensor for each parameter may replace the parameter itself.
    sure = same & (kept_count >= most) & ((freed_count == 0) | (freed_count >= 2 * most))
    chosen = here & sure & (_rank(place, blocks.address, here) < most)
    more = here & ~chosen
    gradients = int(at_once[: len(sizes)].sum())
    return GradientSizes(
        parameter=chosen & (kept_count == most),
        one_of_several=chosen & (kept_count > most),
        state=more & sure & (kept_count == 3 * most),
        replaced=freed & sure,
        other=more | freed,
        steps=0 < gradients <= int((kept & (blocks.requested == _STEP)).sum()),
    )


def _most_at_once(sizes: np.ndarray, size: np.ndarray, start: np.ndarray, freed: np.ndarray) -> np.ndarray:
    """The largest number of blocks of each of ``sizes`` that are allocated at once."""
    which = np.searchsorted(sizes, np.concatenate([size, size]))
    when = np.concatenate([start, freed])
    change = np.repeat(np.array([1, -1]), len(size))
    order = np.lexsort((change, when, which))
    which, change = which[order], change[order]
    running = np.cumsum(change)  # each size ends at 0, so the next one begins there
    most = np.zeros(max(len(sizes), 1), dtype=np.int64)
    np.maximum.at(most, which, running)
    return most


def _rank(group: np.ndarray, address: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The number of each chosen block within its group, in order of address."""
    rank = np.zeros(len(group), dtype=np.int64)
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((address[rows], group[rows]))]
    first = np.searchsorted(group[rows], group[rows], side='left')
    rank[rows] = np.arange(len(rows)) - first
    return rank
