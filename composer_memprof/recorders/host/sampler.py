"""Calls a function at a fixed interval on a thread of its own: the one sampling thread that recorders use.

>>> samples = []
>>> sampler = Sampler('example', interval=0.01, sample=lambda: samples.append(1))
>>> sampler.start()
>>> sampler.stop()
True
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Optional


class Sampler:
    """Calls ``sample`` every ``interval`` seconds, first after one interval, from ``start`` to ``stop``.

    The first error of ``sample`` ends the sampling and is kept in ``error``, for the owner to raise on its own thread.

    Args:
        name (str): of the thread.
        interval (float): seconds between the end of one call and the start of the next.
        sample (Callable): called without arguments on the sampling thread.
    """

    def __init__(self, name: str, interval: float, sample: Callable[[], object]) -> None:
        self._name = name
        self._interval = interval
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
        while not self._stop.wait(self._interval):
            try:
                self._sample()
            except Exception as error:
                self.error = error
                return
