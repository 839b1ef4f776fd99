"""The verdict on a run in a terminal, again and again while the run goes on."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.report import report_on_run
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.artifacts.manifest import find_manifests, locked_for_push
from composer_memprof.messages import printable
from composer_memprof.report.text.run_verdict import verdict_text

#: A manifest that was written to in these last seconds is of a run that goes on.
_FRESH_S = 5.0


def watch(folder: Path, every: float) -> None:
    """Print the verdict on the run in ``folder``, and print it anew every ``every`` seconds until the run ends.

    A run goes on as long as one of its processes has its manifest open.
    """
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            running = goes_on(folder)
            live.update(_seen(folder, running), refresh=True)
            if running is False:
                return
            time.sleep(every)


def _seen(folder: Path, running: bool | None) -> RenderableType:
    when = time.strftime('%H:%M:%S')
    state = {None: 'waits for its first file', True: 'goes on', False: 'has ended'}[running]
    head = Text(f'{when}  the run in {printable(str(folder))} {state}', style='dim')
    try:
        return Group(head, verdict_text(report_on_run(find_files([folder]))))
    except (SnapshotError, OSError):  # no file yet
        return head


def goes_on(folder: Path) -> bool | None:
    """True if a process has a manifest of the run open, False if none has; None if there is no manifest yet."""
    manifests = find_manifests(folder) if folder.is_dir() else []
    if not manifests:
        return None
    for path in manifests:
        if time.time() - path.stat().st_mtime < _FRESH_S:
            return True  # its run may be about to lock it
        with locked_for_push(path) as locked:
            if not locked:
                return True
    return False
