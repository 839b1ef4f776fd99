"""New memory, for tests of what measures it."""

from __future__ import annotations

import mmap

MIB = 1 << 20


def fresh_memory() -> mmap.mmap:
    """1 MiB of new memory, never taken from memory that was freed before."""
    memory = mmap.mmap(-1, MIB)
    memory.write(b'x' * MIB)
    return memory
