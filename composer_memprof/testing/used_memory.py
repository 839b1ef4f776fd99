"""What a block of a test used. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from composer_memprof.messages import human_bytes


class Size(int):
    """A number of bytes, which shows itself in a larger unit, and knows what filled it.

    >>> Size(3 << 30), Size(3 << 30) < 4 * (1 << 30)
    (3.0 GiB, True)
    """

    filled_by: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return human_bytes(int(self))

    __str__ = __repr__


@dataclass
class UsedMemory:
    """What a block of a test used, once it has ended.

    Args:
        peak (Size): the most bytes that were allocated during the block, with those from before it.
        reserved (Size): the most that torch's allocator took from the device.
        left (int): the bytes that are allocated after it and were not before.
    """

    peak: Size = field(default_factory=Size)
    reserved: Size = field(default_factory=Size)
    left: int = 0
