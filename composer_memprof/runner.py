"""One training run from a config, and the files it wrote."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import yaml
from composer.core import State
from composer.loggers import Logger, LoggerDestination
from composer.utils import dist

from composer_memprof.analysis.run import RunResult, list_artifacts
from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.writing.disk import sync_and_digest
from composer_memprof.artifacts.writing.folder import ArtifactFolder
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.framework.closing import closing_line
from composer_memprof.callbacks.framework.run_names import run_folder, run_folders, run_name_of
from composer_memprof.config import build_trainer
from composer_memprof.config.credentials import without_credentials
from composer_memprof.messages import log_error

_LOSS = 'loss/train/total'


class _Record(LoggerDestination):
    """Keeps the first and the last finite loss; and the config, in the folder of the run's files."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.first: Optional[float] = None
        self.last: Optional[float] = None
        #: A template; ``''`` if the run leaves no files.
        self.folder = ''
        self._config = config

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Before training nothing is created in the folder: Composer's own callbacks want it empty then."""
        del logger  # unused
        if self.folder and dist.get_global_rank() == 0:
            folder, self.folder = self.folder, ''
            try:
                stamp = Stamp(run_name_of(state), state.timestamp)
                _keep_config(self._config, run_folder(folder, state), stamp)
            except Exception:  # the training goes on
                log_error('the config could not be kept in the folder of the run')

    def log_metrics(self, metrics: dict[str, Any], step: Optional[int] = None) -> None:
        del step  # unused
        loss = metrics.get(_LOSS)
        if loss is not None and math.isfinite(loss):
            self.first = float(loss) if self.first is None else self.first
            self.last = float(loss)


def _keep_config(config: Mapping[str, Any], path: Path, stamp: Stamp) -> None:
    """Write the config without its credentials. A file that is there is not replaced."""
    text = yaml.safe_dump(without_credentials(config), sort_keys=False, allow_unicode=True)
    folder = ArtifactFolder(path.absolute(), Naming('config', None, '.yaml'), None, overwrite=False)
    try:
        file = folder.file('config', '.yaml', stamp, None)
        name, descriptor = folder.create(file)
        with open(descriptor, 'w', encoding='utf-8') as opened:
            opened.write('# Kept by composer-memprof train; storage options, loggers and credentials are left out.\n')
            opened.write(text)
        folder.record(folder.saved_entry(file, name, *sync_and_digest(folder.path / name.name)))
    finally:
        folder.manifest.release()


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
        self._kept = _Record(config)
        self._trainer = build_trainer(config, loggers=[self._kept])
        callbacks = [each for each in self._trainer.state.callbacks if isinstance(each, ProfilingCallback)]
        self._folders: set[Path] = {
            folder.absolute()
            for callback in callbacks
            for folder in run_folders(callback.output.folder, self._trainer.state)
        }
        self._kept.folder = callbacks[0].output.folder if callbacks else ''
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
        return RunResult(run_name_of(state), batches, self._kept.first, self._kept.last, artifacts)


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
