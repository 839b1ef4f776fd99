"""flash-attn 3: what its functions allocate, in which order, and which operators they call.

What is allocated was read in ``hopper/flash_api.cpp`` and ``hopper/flash_attn_interface.py`` of Dao-AILab/flash-attention at
commit 0251105a. It depends on nothing but shapes, data types, windows and the GPU's compute capability.
"""

from __future__ import annotations

from composer_memprof.simulated_gpu.stand_ins.launching import stands_in

#: The version that it stands for.
VERSION = '3'


def note_use() -> None:
    """Called by each kernel that allocates.

    Raises:
        RuntimeError: on a real GPU.
    """
    stands_in('flash_attn_interface', f'flash-attn {VERSION}')
