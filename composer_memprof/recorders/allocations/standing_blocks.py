"""Memory on the CPU that was allocated before a recording: torch's profiler reports neither it nor its free.

standing = StandingBlocks([tensor])
del tensor
standing.blocks, standing.freed
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from composer_memprof.recorders.tensors import parts_of


@dataclass(frozen=True)
class Freed:
    """The block at ``address`` was freed at ``time_ns``, nanoseconds since 1970, or shortly before."""

    time_ns: int
    address: int


class StandingBlocks:
    """Follows the storages of tensors until they are freed, without keeping them alive.

    >>> import torch
    >>> tensor = torch.zeros(4)
    >>> standing = StandingBlocks([tensor, tensor[2:]])
    >>> [size for address, size in standing.blocks.items()]
    [16]
    >>> del tensor
    >>> len(standing.freed)
    1

    Args:
        tensors (Iterable[Tensor]): those on the CPU count, and of wrappers the tensors inside.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        storages: dict[int, torch.UntypedStorage] = {}
        for tensor in tensors:
            for storage in storages_of(tensor):
                if storage.device.type == 'cpu' and storage.nbytes():
                    storages[storage.data_ptr()] = storage
        #: Bytes by address.
        self.blocks: dict[int, int] = distinct((address, storage.nbytes()) for address, storage in storages.items())
        self.freed: list[Freed] = []
        self._followed = {address: self._follow(address, storages[address]) for address in self.blocks}

    @property
    def bytes(self) -> int:
        """Of all blocks at the start."""
        return sum(self.blocks.values())

    def look(self) -> None:
        """Find storages that live on with other memory, which nothing tells of."""
        for address, reference in list(self._followed.items()):
            storage = reference()
            if storage is None or storage.data_ptr() != address or storage.nbytes() != self.blocks[address]:
                self._free(address)

    def leave(self) -> None:
        """Follow no storage any longer."""
        self._followed = {}

    def _follow(self, address: int, storage: torch.UntypedStorage) -> _Reference:
        reference = _Reference(storage, _gone)
        reference.address, reference.standing = address, weakref.ref(self)
        return reference

    def _free(self, address: int) -> None:
        if self._followed.pop(address, None) is not None:
            self.freed.append(Freed(time.time_ns(), address))


class _Reference(weakref.ref):
    """To a storage. It does not keep the recording alive, which a user's tensor may outlive."""

    __slots__ = ('address', 'standing')
    address: int
    standing: weakref.ref[StandingBlocks]


def _gone(reference: weakref.ref) -> None:
    assert isinstance(reference, _Reference)
    standing = reference.standing()
    if standing is not None:
        standing._free(reference.address)


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """The storages of a tensor or of the tensors inside of it; none for one without memory of its own."""
    try:
        return [part.untyped_storage() for part in parts_of(tensor)]
    except (RuntimeError, NotImplementedError, AttributeError):
        return []


def distinct(blocks: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Bytes by address, each byte of memory once: of blocks that overlap, the one that begins first, then the largest.

    >>> distinct([(1024, 64), (1024, 64), (1040, 16), (2048, 8)])
    {1024: 64, 2048: 8}
    """
    found: dict[int, int] = {}
    end = 0
    for address, size in sorted(blocks, key=lambda block: (block[0], -block[1])):
        if address >= end:
            found[address] = size
            end = address + size
    return found
