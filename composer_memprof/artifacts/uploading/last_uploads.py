"""The wait for uploads at the end of a run: one time limit, one line and one warning for all stores that close together."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from composer.utils import dist

from composer_memprof.artifacts.uploading.bar import UploadBar, text_of
from composer_memprof.artifacts.uploading.process.pool import Waiting
from composer_memprof.artifacts.writing.deadlines import Deadline, exiting, is_hurried
from composer_memprof.messages import count_of, errors_logged, push_command, warn

#: Seconds after which a line or a bar shows what is waited for.
_LONG_S = 2.0
#: Seconds to look for files that were handed over to a logger, even if no time is left.
_LOOK_S = 1.0
#: At interpreter exit, the share of the time that is reserved for uploads in a child process.
_SHARE_OF_PUSH = 0.75


@dataclass(frozen=True)
class Unsent:
    """The files of one store that are not uploaded at its end.

    Args:
        folder (Path): of the files.
        waiting (int): number of files that were not uploaded in time.
        handed_over (int): number of files that Composer's logger has, and its store does not have yet.
    """

    folder: Path
    waiting: int
    handed_over: int


class Uploads(Protocol):
    """The uploads of one store."""

    def wait(self, deadline: Deadline, each_second: Callable[[], None], *, confirm: bool) -> None:
        """Wait until ``deadline`` for uploads; with ``confirm`` also for files that were handed over to a logger."""

    def left_of_all(self) -> Waiting:
        """The files of all stores that are still to be uploaded."""

    def unsent(self, deadline: Deadline) -> Unsent:
        """The files that are not uploaded. Looks until ``deadline`` for files that were handed over to a logger."""


class LastUploads:
    """Time limit and warning that the stores share that close between :meth:`begin` and :meth:`end`. Others wait alone."""

    def __init__(self) -> None:
        self.begin()
        self._together = False

    def begin(self) -> None:
        """Begin a shared wait: the callbacks of a Trainer are about to close, one after the other."""
        self._together = True
        self._waited = 0.0
        self._timeout = 0.0
        self._told = False
        self._bar = UploadBar()
        self._closed: list[Uploads] = []

    def wait_for(self, uploads: Uploads, timeout: float) -> None:
        """Wait for the uploads of a store that closes: ``timeout`` seconds, minus the seconds that other stores waited.

        At interpreter exit, an upload that has started may still succeed. All others need a child process, for which
        most of the time is reserved.
        """
        share = 1 - _SHARE_OF_PUSH if exiting() else 1
        deadline = Deadline(max(0.0, timeout - self._waited), if_leaving=timeout * share, if_hurried=0)
        began = time.monotonic()
        self._timeout = max(self._timeout, timeout)
        # Composer itself waits for its uploaders once all callbacks are closed.
        uploads.wait(deadline, lambda: self._explain(uploads, began), confirm=not self._together)
        self._waited += time.monotonic() - began
        self._closed.append(uploads)
        if not self._together:
            self.end()

    def end(self) -> None:
        """End the shared wait: warn of the files that are not uploaded."""
        closed, timeout = self._closed, self._timeout
        looking = Deadline(max(_LOOK_S, timeout - self._waited), if_leaving=_LOOK_S, if_hurried=0)
        self._bar.close()
        self.begin()
        self._together = False
        with errors_logged('the warning about uploads failed'):
            _warn_of([uploads.unsent(looking) for uploads in closed], timeout)

    def _explain(self, uploads: Uploads, began: float) -> None:
        waited = self._waited + time.monotonic() - began
        if waited < _LONG_S or dist.get_local_rank() != 0:
            return
        left = uploads.left_of_all()
        if not left.files:  # a store is asked for what it has
            return
        if not self._bar.show(left) and not self._told:
            self._told = True
            sys.stderr.write(
                f'composer_memprof: waiting for {text_of(left)} to be uploaded, up to {self._timeout:g} s '
                '(close_timeout)\n'
            )


#: The shared wait of this process.
last_uploads = LastUploads()


def _warn_of(found: Sequence[Unsent], timeout: float) -> None:
    if exiting():  # the child process reports its failures itself, later
        found = [Unsent(unsent.folder, 0, unsent.handed_over) for unsent in found]
    waiting, handed_over = (sum(counts) for counts in zip((0, 0), *((u.waiting, u.handed_over) for u in found)))
    parts = []
    if waiting:
        reason = 'because of Ctrl-C' if is_hurried() else f'within close_timeout={timeout:g} s'
        parts.append(f'{count_of(waiting, "file")} not uploaded {reason}')
    if handed_over:
        parts.append(f"{count_of(handed_over, 'file')} handed over to Composer's logger, and not in its store yet")
    if parts:
        command = push_command(unsent.folder for unsent in found if unsent.waiting or unsent.handed_over)
        warn(f'{"; ".join(parts)}. All are kept. Upload them with: {command}')
