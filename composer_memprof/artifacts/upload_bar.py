"""How many files are still to be uploaded, as a bar on a terminal."""

from __future__ import annotations

import sys
from typing import Any, Optional

from composer_memprof.messages import count_of, human_bytes


class UploadBar:
    """A bar on stderr, if that is a terminal. It is gone after :meth:`close`.

    Args:
        files (int): that are to be uploaded.
    """

    def __init__(self, files: int) -> None:
        self._files = files
        self._bar: Optional[Any] = None
        if sys.stderr.isatty():
            self._bar = _bar_of(files)
            self._bar.start()

    @property
    def is_shown(self) -> bool:
        return self._bar is not None

    def show(self, left: int, size: int) -> None:
        """Draw it with ``left`` files of together ``size`` bytes to go."""
        if self._bar is not None:
            self._files = max(self._files, left)
            what = f'{count_of(left, "file")} ({human_bytes(size)}) to upload'
            self._bar.update(0, total=self._files, completed=self._files - left, description=what)
            self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar_of(files: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn('{task.description}'), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    bar.add_task('', total=files)
    return bar
