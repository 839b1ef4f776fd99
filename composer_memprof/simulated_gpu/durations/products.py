"""How long a matrix product takes: tiles of the result are computed in waves, one on each multiprocessor at a time.

Tiles and splits are those of cuBLAS's and CUTLASS's usual kernels; the quickest is taken. Source of the scheme: NVIDIA,
"Matrix Multiplication Background User's Guide", tile and wave quantization. The tiles' relative rates are assumed.
"""

from __future__ import annotations

import functools
import math

from composer_memprof.simulated_gpu.durations.memory import Memory
from composer_memprof.simulated_gpu.rates import KERNEL, UNALIGNED_REACHED, Rates

#: Rows and columns of a tile, and its rate relative to the largest one's.
_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.6))
#: In how many parts the summed dimension may be split.
_SPLITS = (1, 2, 3, 4, 6, 8)
#: Seconds from a tile's start to its first product. Assumed.
_TILE_BEGINS = 2e-6
#: The fewest bytes that can be copied into a multiprocessor asynchronously.
_COPIED = 4


class Products:
    """The products of one device."""

    def __init__(self, rates: Rates, multiprocessors: int, memory: Memory) -> None:
        self._rates = rates
        self._memory = memory
        self._multiprocessors = multiprocessors
        self.seconds = functools.cache(self._seconds)

    def _seconds(
        self, batch: int, m: int, n: int, k: int, dtype: str, itemsize: int, tf32: bool, alignment: int = 16
    ) -> float:
        """Seconds of ``batch`` products of (m, k) by (k, n).

        Args:
            alignment: bytes of which the distances between rows are a multiple.
        """
        if not batch * m * n * k:
            return KERNEL
        rate = self._rates.peak(dtype, tf32) * self._reached(dtype, tf32, alignment) / self._multiprocessors
        moved = batch * (m * k + k * n + m * n) * itemsize
        memory = moved / self._memory.seconds(moved)
        computed = min(
            self._waves(batch * split * math.ceil(m / rows) * math.ceil(n / columns))
            * (
                _TILE_BEGINS
                + 2 * rows * columns * math.ceil(k / split) / (rate * relative)
                # all tiles of a wave are written at the same time
                + rows * columns * itemsize * self._multiprocessors / memory
            )
            + (split > 1) * (split + 1) * batch * m * n * 4 / memory
            for rows, columns, relative in _TILES
            for split in _SPLITS
        )
        return KERNEL + max(computed, moved / memory)

    def _reached(self, dtype: str, tf32: bool, alignment: int) -> float:
        if not self._rates.on_tensor_cores(dtype, tf32):
            return self._rates.reached_in_float32
        return self._rates.reached * (UNALIGNED_REACHED if alignment < _COPIED else 1)

    def _waves(self, tiles: int) -> float:
        return math.ceil(tiles / self._multiprocessors)
