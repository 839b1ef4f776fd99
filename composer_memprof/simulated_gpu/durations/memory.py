"""How long bytes take that a kernel reads and writes: from the device's memory, or from its L2 cache."""

from __future__ import annotations

from composer_memprof.simulated_gpu.rates import L2_CACHE, MEMORY_REACHED, Rates


class Memory:
    """The memory of one device.

    What a kernel reads was mostly written by the kernel before it. The smaller its tensors are, the more of them are still
    in the cache: all of a few bytes, nothing of more than the cache holds, and between these the share that is left free.

    Args:
        cache: bytes of the L2 cache; 0 if there is none.
    """

    def __init__(self, rates: Rates, multiprocessors: int, cache: int) -> None:
        self._rate = rates.memory * MEMORY_REACHED
        self._cache = cache
        self._rate_of_cache = max(self._rate, multiprocessors * L2_CACHE)

    def seconds(self, size: float) -> float:
        """Seconds for the bytes of a kernel.

        >>> from composer_memprof.simulated_gpu.rates import rates_of
        >>> l4 = Memory(rates_of('l4'), 58, 48 << 20)
        >>> round(l4.seconds(1 << 30), 6), round(l4.seconds(1 << 20), 6)
        (0.004211, 1e-06)
        """
        if size >= self._cache:
            return size / self._rate
        cached = size * (1 - size / self._cache)
        return (size - cached) / self._rate + cached / self._rate_of_cache
