"""Replays allocations on torch's own allocator, and prints the most that it reserved: ``python -m … EVENTS.npz``.

Runs in a process of its own, on a simulated GPU, with the allocator's settings in the environment.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch


def most_reserved(block: list[int], size: list[int]) -> int:
    """The most bytes that the allocator reserved.

    Args:
        block (list[int]): the block of each event, in order of time. The first event of a block allocates it, the second
            frees it.
        size (list[int]): of each block, in bytes.
    """
    torch.cuda.init()
    address: dict[int, int] = {}
    for each in block:
        if each in address:
            torch.cuda.caching_allocator_delete(address.pop(each))
        else:
            address[each] = torch.cuda.caching_allocator_alloc(size[each], 0, 0)
    return torch.cuda.max_memory_reserved()


if __name__ == '__main__':
    with np.load(sys.argv[1], allow_pickle=False) as events:
        print(json.dumps({'reserved': most_reserved(events['block'].tolist(), events['size'].tolist())}))
