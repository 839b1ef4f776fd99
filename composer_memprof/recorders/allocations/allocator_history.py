"""The CUDA caching allocator's own history: each allocation and free, with its stack.

with AllocatorHistory(max_entries=100_000) as history:
    train_one_batch()
snapshot = history.snapshot
"""

from __future__ import annotations

from typing import Any, Literal, Optional

import torch

Stacks = Literal['python', 'all']
Context = Literal['all', 'alloc', 'state']


class AllocatorHistory:
    """Records with ``torch.cuda.memory._record_memory_history`` (private in torch; checked on 2.6 to 2.7).

    Args:
        max_entries (int): events to keep; the oldest are dropped beyond it.
        stacks (str): ``'python'``, or ``'all'`` with C++ frames, which are looked up when the snapshot is taken.
        context (str): which events carry stacks, as in torch: ``'all'``, ``'alloc'`` or ``'state'``.
    """

    def __init__(self, max_entries: int, stacks: Stacks = 'python', context: Context = 'all') -> None:
        self.max_entries = max_entries
        self.stacks: Stacks = stacks
        self.context: Context = context
        #: Of the last ``with`` block.
        self.snapshot: Optional[dict[str, Any]] = None

    def start(self) -> None:
        torch.cuda.memory._record_memory_history(
            'all', context=self.context, stacks=self.stacks, max_entries=self.max_entries
        )

    def stop(self) -> dict[str, Any]:
        """End the recording; returns the snapshot, plain dicts, lists, strings and numbers, sizes in bytes."""
        try:
            return self.take()
        finally:
            self.cancel()

    def take(self) -> dict[str, Any]:
        """The snapshot so far; the recording goes on. Asks nothing of the device, so that a forked child may do it."""
        return torch.cuda.memory._snapshot()

    @staticmethod
    def settle() -> None:
        """Take and give back the locks that a snapshot takes: a device's counters are read under its allocator's.

        Through ``torch._C._cuda_memoryStats`` (private in torch; checked on 2.7 and 2.11), since in a forked child the
        public function reads nothing. The number of devices is known to torch from the parent on.
        """
        for device in range(torch.cuda.device_count()):
            torch._C._cuda_memoryStats(device)

    def cancel(self) -> None:
        """End the recording without a snapshot."""
        torch.cuda.memory._record_memory_history(None)

    def __enter__(self) -> AllocatorHistory:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.snapshot = self.stop()
