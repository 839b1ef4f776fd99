"""flash-attn 2.7.4: what its functions allocate, in which order, and which operators they call.

What is allocated was read in ``csrc/flash_attn/flash_api.cpp`` and the Python modules of that version, which depend on
nothing but shapes, data types and the number of multiprocessors.
"""

from __future__ import annotations

from composer_memprof.simulated_gpu.stand_ins.launching import stands_in

#: The version that it stands for.
VERSION = '2.7.4'


def note_use() -> None:
    """Called by each function that allocates.

    Raises:
        RuntimeError: on a real GPU.
    """
    stands_in('flash_attn', f'flash-attn {VERSION}')
