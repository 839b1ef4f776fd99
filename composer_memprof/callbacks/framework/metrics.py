"""What a callback gives to Composer's loggers, beside its files.

Loggers are not safe to call from several threads, so all is logged on the training thread. A window's peak may be known
only once its files are written, on another thread; it is logged at the next opportunity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from composer.loggers import Logger

from composer_memprof.messages import errors_logged

Metrics = Mapping[str, float]


class WindowMetrics:
    """Metrics of windows that have ended: added on any thread, logged on the training thread."""

    def __init__(self) -> None:
        self._unlogged: deque[Metrics] = deque()

    def __bool__(self) -> bool:
        """Whether there is something to log."""
        return bool(self._unlogged)

    def add(self, metrics: Metrics) -> None:
        self._unlogged.append(metrics)

    def log(self, logger: Logger) -> None:
        """Log what was added, at the current batch: some loggers drop what comes late for an earlier one."""
        while self._unlogged:
            logger.log_metrics(dict(self._unlogged.popleft()))

    def log_at_close(self, logger: Logger, batch: int) -> None:
        """As :meth:`log`, to the loggers that still take metrics: at the close, W&B's and MLflow's do, TensorBoard's does not."""
        while self._unlogged:
            metrics = self._unlogged.popleft()
            for destination in logger.destinations:
                with errors_logged(f'{type(destination).__name__} takes no metrics at the close'):
                    destination.log_metrics(dict(metrics), batch)


class Repeats:
    """Leaves out what would be logged again and again: constants, and zeros."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def left_out(self, metrics: Metrics, constants: Collection[str] = ()) -> dict[str, float]:
        """``metrics`` without the values that are equal to the last ones, if they are zeros or of ``constants``.

        >>> repeats = Repeats()
        >>> repeats.left_out({'eval': 0.0, 'limit': 8, 'rss': 5}, constants=['limit'])
        {'eval': 0.0, 'limit': 8, 'rss': 5}
        >>> repeats.left_out({'eval': 0.0, 'limit': 8, 'rss': 5}, constants=['limit'])
        {'rss': 5}
        >>> repeats.left_out({'eval': 2.5, 'limit': 9, 'rss': 5}, constants=['limit'])
        {'eval': 2.5, 'limit': 9, 'rss': 5}
        """
        new = {
            name: value
            for name, value in metrics.items()
            if self._last.get(name) != value or (value and name not in constants)
        }
        self._last.update(new)
        return new
