"""Memory on the CPU that was allocated before a recording: torch's profiler reports neither it nor its free.

standing = StandingBlocks([tensor])
del tensor
standing.blocks, standing.freed
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
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
        resized (Callable, optional): returns those whose storages get and lose their memory while they live.
    """

    def __init__(
        self, tensors: Iterable[torch.Tensor], resized: Callable[[], Iterable[torch.Tensor]] = lambda: ()
    ) -> None:
        storages = _by_address(tensors)
        #: Bytes by address.
        self.blocks: dict[int, int] = distinct((address, storage.nbytes()) for address, storage in storages.items())
        self.freed: list[Freed] = []
        self._resized = resized
        self._may_lose = set(_by_address(resized())) & set(self.blocks)
        self._followed = {address: self._follow(address, storages[address]) for address in self.blocks}

    @property
    def bytes(self) -> int:
        """Of all blocks at the start."""
        return sum(self.blocks.values())

    def look(self) -> None:
        """Find storages that have lost their memory and live on."""
        if self._may_lose:
            lost = self._may_lose - set(_by_address(self._resized()))
            self._may_lose -= lost
            for address in lost:
                self._free(address)

    def leave(self) -> None:
        """Follow no storage any longer."""
        self._followed, self._may_lose, self._resized = {}, set(), tuple

    def _follow(self, address: int, storage: torch.UntypedStorage) -> _Reference:
        reference = _Reference(storage, _gone)
        reference.address, reference.standing = address, weakref.ref(self)
        return reference

    def _free(self, address: int) -> None:
        if self._followed.pop(address, None) is not None:
            self.freed.append(Freed(time.time_ns(), address))


class _Reference(weakref.ref):
    """To a storage. It does not keep the recording alive, which a user's tensor may outlive.

    It must never be called: torch may free the memory of a storage that only a weak reference has led to.
    """

    __slots__ = ('address', 'standing')
    address: int
    standing: weakref.ref[StandingBlocks]


def _gone(reference: weakref.ref) -> None:
    assert isinstance(reference, _Reference)
    standing = reference.standing()
    if standing is not None:
        standing._free(reference.address)


def _by_address(tensors: Iterable[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    """The storages on the CPU that have memory."""
    storages = [storage for tensor in tensors for storage in storages_of(tensor)]
    return {storage.data_ptr(): storage for storage in storages if storage.device.type == 'cpu' and storage.nbytes()}


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
