"""One training run from a config, and what it left behind."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from composer.loggers import LoggerDestination

from composer_memprof.analysis.run import RunResult, list_artifacts
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.config import build_trainer

_LOSS = 'loss/train/total'


class _LossEnds(LoggerDestination):
    """Keeps the first loss and the last."""

    def __init__(self) -> None:
        self.first: Optional[float] = None
        self.last: Optional[float] = None

    def log_metrics(self, metrics: dict[str, Any], step: Optional[int] = None) -> None:
        del step  # unused
        loss = metrics.get(_LOSS)
        if loss is not None and math.isfinite(loss):
            self.first = float(loss) if self.first is None else self.first
            self.last = float(loss)


class Run:
    """A run that is ready to train.

    >>> from composer_memprof import config
    >>> run = Run(config.load(Path('yamls/quickstart.yaml'), ['max_duration=2ba']))  # doctest: +SKIP
    >>> run.train()  # doctest: +SKIP

    Raises:
        ConfigError: for a user's mistake in ``config``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._losses = _LossEnds()
        self._trainer = build_trainer(config, loggers=[self._losses])
        callbacks = [callback for callback in self._trainer.state.callbacks if isinstance(callback, ProfilingCallback)]
        self._folders: set[Path] = {callback.folder_path for callback in callbacks}
        self._before = set(list_artifacts(self._folders))  # of an earlier run under the same name

    def train(self) -> None:
        """Train to the end; Ctrl-C ends the process by 130, without a traceback."""
        with _interrupted_quietly():
            self._trainer.fit()
        self._trainer.close()

    def result(self) -> RunResult:
        """What there is to tell, however the run has ended."""
        state = self._trainer.state
        batches = state.timestamp.batch.value
        artifacts = [artifact for artifact in list_artifacts(self._folders) if artifact not in self._before]
        return RunResult(state.run_name, batches, self._losses.first, self._losses.last, artifacts)


@contextlib.contextmanager
def _interrupted_quietly() -> Iterator[None]:
    """After Ctrl-C, whatever error comes of it (of DataLoader workers that are stopped too, say) is no news."""
    interrupted = False

    def stop(number: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGCHLD, lambda *_: None)  # torch's would raise of each worker that is stopped too
        sys.exit(128 + number)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    except Exception:
        if not interrupted:
            raise
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
