"""Calls a function at an interval on a thread of its own: the one sampling thread that recorders use.

>>> samples = []
>>> sampler = Sampler('example', interval=0.01, sample=lambda: samples.append(1))
>>> sampler.start()
>>> sampler.stop()
True
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Optional

#: Its multiples, modulo 1, fill the range from 0 to 1 evenly. Source: Knuth, The Art of Computer Programming 3, 6.4.
_GOLDEN_RATIO = (5**0.5 - 1) / 2


def uneven_intervals(mean: float) -> Iterator[float]:
    """Seconds from half of ``mean`` to one and a half of it, for ever.

    Samples at a fixed interval see the same moment of each batch where batches take as long as the interval.
    """
    for count in itertools.count(1):
        yield mean * (0.5 + count * _GOLDEN_RATIO % 1)


class Sampler:
    """Calls ``sample`` every ``interval`` seconds, first after one interval, from ``start`` to ``stop``.

    The first error of ``sample`` ends the sampling and is kept in ``error``, for the owner to raise on its own thread.

    Args:
        name (str): of the thread.
        interval (float): seconds between the end of one call and the start of the next.
        sample (Callable): called without arguments on the sampling thread.
        uneven (bool): vary the interval, as :func:`uneven_intervals`.
    """

    def __init__(self, name: str, interval: float, sample: Callable[[], object], uneven: bool = False) -> None:
        self._name = name
        self._intervals = uneven_intervals(interval) if uneven else itertools.repeat(interval)
        self._sample = sample
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self.error: Optional[Exception] = None

    def start(self) -> None:
        """Begin to sample.

        Raises:
            RuntimeError: if the sampler was started before.
        """
        if self._thread is not None or self._stop.is_set():
            raise RuntimeError('a sampler can be started only once')
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """End the sampling; a call that is running may finish. Does nothing if the sampler does not run.

        Args:
            timeout (float): seconds to wait for the thread.

        Returns:
            bool: True if the thread has ended.
        """
        self._stop.set()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        for interval in self._intervals:
            if self._stop.wait(interval):
                return
            try:
                self._sample()
            except Exception as error:
                self.error = error
                return
