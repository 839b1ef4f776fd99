"""The CUDA caching allocator's own history: each allocation and free, with its stack.

with AllocatorHistory(max_entries=100_000) as history:
    train_one_batch()
snapshot = history.snapshot
"""

from __future__ import annotations

from typing import Any, Literal, Optional

import torch

from composer_memprof.recorders.allocations.notes import SnapshotNotes
from composer_memprof.recorders.torch_private import cuda_allocator

#: The modules of ``torch_private`` that this one needs.
NEEDS = (cuda_allocator,)


def notes_of_devices() -> SnapshotNotes:
    """The notes of every snapshot made here. Not for a forked child, which can ask the devices nothing."""
    devices = range(torch.cuda.device_count())
    return SnapshotNotes(
        device='cuda',
        torch=str(torch.__version__),
        recorder='allocator_history',
        memory=[torch.cuda.get_device_properties(device).total_memory for device in devices],
    )


Stacks = Literal['python', 'all']
Context = Literal['all', 'alloc', 'state']


class AllocatorHistory:
    """Records the allocator's history.

    Args:
        max_entries (int): events to keep; beyond it the oldest are dropped.
        stacks (str): ``'python'``, or ``'all'`` to add C++ frames, which torch resolves when the snapshot is taken.
        context (str): which events carry stacks, as in torch: ``'all'``, ``'alloc'`` or ``'state'``.
    """

    def __init__(self, max_entries: int, stacks: Stacks = 'python', context: Context = 'all') -> None:
        self.max_entries = max_entries
        self.stacks: Stacks = stacks
        self.context: Context = context
        #: Of the last ``with`` block.
        self.snapshot: Optional[dict[str, Any]] = None

    def start(self) -> None:
        cuda_allocator.record_memory_history(
            'all', context=self.context, stacks=self.stacks, max_entries=self.max_entries
        )

    def stop(self) -> dict[str, Any]:
        """End the recording and return the snapshot: plain dicts, lists, strings and numbers, sizes in bytes."""
        try:
            return self.take()
        finally:
            self.cancel()

    def take(self) -> dict[str, Any]:
        """The snapshot so far; the recording continues. Works in a forked child: it makes no call to the device."""
        return cuda_allocator.memory_snapshot()

    @staticmethod
    def settle() -> None:
        """Take and release each lock that :meth:`take` needs: in a forked child this hangs if a thread held one."""
        # torch.cuda.memory_stats reads nothing in a forked child.
        for device in range(torch.cuda.device_count()):
            cuda_allocator.memory_stats(device)

    def cancel(self) -> None:
        """End the recording without a snapshot."""
        cuda_allocator.record_memory_history(None)

    def __enter__(self) -> AllocatorHistory:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.snapshot = self.stop()
