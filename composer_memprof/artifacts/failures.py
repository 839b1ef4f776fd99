"""What happens when background work on artifacts fails: a warning, once for each subject, and never an exception."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Optional

from composer_memprof.messages import log_error, warn


class Failures:
    """Warns about failures in ``folder``.

    Args:
        folder (Path): named in the warnings.
        on_lost_folder (Callable, optional): called when nothing can be written to the folder any more.
    """

    def __init__(self, folder: Path, on_lost_folder: Optional[Callable[[BaseException], None]] = None) -> None:
        self._folder = folder
        self._on_lost_folder = on_lost_folder
        self._warned: set[str] = set()

    def warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warn(message)

    def guard(self, work: Callable[[], object]) -> None:
        """Run ``work`` without raising: an error here must not stop the training."""
        try:
            work()
        except Exception as error:  # such as a full disk, or a folder that was removed
            log_error(f'work on the files in {self._folder} failed')
            self._report_lost_folder(error)

    def _report_lost_folder(self, error: BaseException) -> None:
        self.warn_once(
            'folder',
            f'nothing can be written to {str(self._folder)!r} any more: {error}. Training continues without these files. '
            'Free disk space, check permissions, or set folder to another place',
        )
        if self._on_lost_folder is not None:
            self._on_lost_folder(error)
