"""A bar on a terminal that shows how many files are still to be uploaded."""

from __future__ import annotations

import sys
from typing import Any, Optional

from composer_memprof.artifacts.uploading.process.pool import Waiting
from composer_memprof.messages import count_of, human_bytes


class UploadBar:
    """A bar on stderr, if stderr is a terminal. :meth:`close` removes it."""

    def __init__(self) -> None:
        self._total = 0
        self._bar: Optional[Any] = None

    def show(self, left: Waiting) -> bool:
        """Draw the bar with the files that are left; False if there is no terminal."""
        if not sys.stderr.isatty():
            return False
        if self._bar is None:
            self._bar = _new_bar()
            self._bar.start()
        self._total = max(self._total, left.files)
        self._bar.update(
            0, total=self._total, completed=self._total - left.files, description=f'{text_of(left)} to upload'
        )
        self._bar.refresh()
        return True

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def text_of(left: Waiting) -> str:
    """``'3 files (1.5 GiB)'``."""
    return f'{count_of(left.files, "file")} ({human_bytes(left.bytes)})'


def _new_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn('{task.description}'), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    bar.add_task('')
    return bar
