"""One training run from a config, and the files it wrote."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from composer.loggers import LoggerDestination
from composer.utils import dist

from composer_memprof.analysis.run import RunResult, list_artifacts
from composer_memprof.artifacts.names import folders_of_all_ranks
from composer_memprof.callbacks.framework import closing_line
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.config import build_trainer
from composer_memprof.messages import log_error

_LOSS = 'loss/train/total'


class _FirstAndLastLoss(LoggerDestination):
    """Keeps the first and the last finite loss."""

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
    >>> run = Run(config.load('quickstart', ['max_duration=2ba', 'callbacks=null']))
    >>> run.train()
    >>> run.result().batches
    2

    Raises:
        ConfigError: for a user's mistake in ``config``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._losses = _FirstAndLastLoss()
        self._trainer = build_trainer(config, loggers=[self._losses])
        callbacks = [each for each in self._trainer.state.callbacks if isinstance(each, ProfilingCallback)]
        run_name, ranks = self._trainer.state.run_name, dist.get_world_size()
        self._folders: set[Path] = {
            folder.absolute()
            for callback in callbacks
            for folder in folders_of_all_ranks(callback.output.folder, run_name, ranks)
        }
        closing_line.leave_out(self._folders)  # the result lists them
        self._before = set(list_artifacts(self._folders))  # of an earlier run under the same name

    def train(self) -> None:
        """Train to the end. Ctrl-C ends the process with exit code 130 and without a traceback."""
        with _interrupted_quietly():
            self._trainer.fit()
        self._trainer.close()

    def result(self) -> RunResult:
        """The losses and files of the run, whether it succeeded or not."""
        state = self._trainer.state
        batches = state.timestamp.batch.value
        artifacts = [artifact for artifact in list_artifacts(self._folders) if artifact not in self._before]
        return RunResult(state.run_name, batches, self._losses.first, self._losses.last, artifacts)


@contextlib.contextmanager
def _interrupted_quietly() -> Iterator[None]:
    """Exit with 130 on Ctrl-C; an error that it causes, such as that of a stopped DataLoader worker, is not shown."""
    interrupted = False

    def stop(number: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGCHLD, lambda *_: None)  # torch's handler would raise for each stopped worker
        sys.exit(128 + number)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    except Exception:
        if not interrupted:
            raise
        log_error('an error after Ctrl-C')
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
