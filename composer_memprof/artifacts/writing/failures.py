"""Failures of background work on artifacts become warnings, one for each subject, and never exceptions."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Optional

from composer_memprof.artifacts.writing.child.file_descriptors import explained, is_out_of_descriptors
from composer_memprof.messages import log_error, warn

#: Errors of a file that concern its whole folder, whatever is written.
_OF_FOLDER = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENOTDIR, errno.ESTALE)


class LostFolderError(OSError):
    """The folder accepts no file any more."""


class NoExceptionError(Exception):
    """What a client of a store raised is no ``Exception``: a panic of a library in Rust, a cancelled task, an exit."""


@contextmanager
def only_exceptions() -> Iterator[None]:
    """Whatever the block raises is an ``Exception``, so that it ends no thread. Ctrl-C and an exit of the main thread pass.

    Raises:
        NoExceptionError: in place of what is no exception.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        on_main = threading.current_thread() is threading.main_thread()
        if isinstance(error, GeneratorExit) or (on_main and isinstance(error, (KeyboardInterrupt, SystemExit))):
            raise
        raise NoExceptionError(f'{type(error).__name__}: {error}') from error


@contextmanager
def raising_lost_folder() -> Iterator[None]:
    """Turn an ``OSError`` in the block into a :class:`LostFolderError`.

    Use it around the first and the last step of each file: if these fail, the folder accepts no file any more.

    Raises:
        LostFolderError: for an ``OSError`` that concerns the folder.
    """
    try:
        yield
    except OSError as error:
        if is_out_of_descriptors(error) or error.errno == errno.ENAMETOOLONG:
            raise
        raise LostFolderError(str(error)) from error


def is_lost_folder(error: BaseException) -> bool:
    """True if ``error`` says that the folder accepts no file any more."""
    return isinstance(error, LostFolderError) or (isinstance(error, OSError) and error.errno in _OF_FOLDER)


class Failures:
    """Warns about failures in ``folder``. That the folder is lost is reported once, by whoever notices it first.

    Args:
        folder (Path): named in the warnings.
        on_lost_folder (Callable, optional): called when nothing can be written to the folder any more.
    """

    #: The lost folders of all stores of this process.
    _lost: ClassVar[set[Path]] = set()

    def __init__(self, folder: Path, on_lost_folder: Optional[Callable[[BaseException], None]] = None) -> None:
        self._folder = folder
        self._lost.discard(folder)  # a run begins
        self._on_lost_folder = on_lost_folder
        self._warned: set[str] = set()

    def warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warn(message)

    def guard(self, work: Callable[[], object]) -> None:
        """Run ``work`` without raising: an error here must not stop the training."""
        try:
            with only_exceptions():
                work()
        except Exception as error:  # such as a full disk, or a folder that was removed
            log_error(f'work on the files in {self._folder} failed')
            if is_out_of_descriptors(error):
                self.warn_once(
                    'descriptors', f'not all files in {str(self._folder)!r} could be completed: {explained(error)}'
                )
            else:
                self.report_lost_folder(error)

    def report_lost_folder(self, error: BaseException) -> None:
        if self._folder not in self._lost:
            self._lost.add(self._folder)
            warn(
                f'nothing can be written to {str(self._folder)!r} any more: {error}. Training continues without these '
                'files. Free disk space, check permissions, or set folder to another place'
            )
        if self._on_lost_folder is not None:
            self._on_lost_folder(error)
