"""The verdict on a run in a terminal, again and again while the run goes on."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.progress import Progress, progress_of
from composer_memprof.analysis.run_report.report import report_on_run
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.artifacts.reading.running import goes_on
from composer_memprof.messages import printable
from composer_memprof.report.text.amounts import amount
from composer_memprof.report.text.sentences.run_failures import became
from composer_memprof.report.text.sentences.run_verdict import verdict_text


def watch(folder: Path, every: float) -> None:
    """Print the verdict on the run in ``folder``, and print it anew every ``every`` seconds until the run ends.

    A run goes on as long as one of its processes has its manifest open.
    """
    console = Console(highlight=False)
    # Where the output is no terminal, each look is printed below the one before.
    with Live(console=console, auto_refresh=False) if console.is_terminal else contextlib.nullcontext() as live:
        while True:
            running = goes_on(folder)
            seen = _seen(folder, running)
            if live is None:
                console.print(seen)
            else:
                live.update(seen, refresh=True)
            if running is False:
                return
            time.sleep(every)


def _seen(folder: Path, running: bool | None) -> RenderableType:
    when = time.strftime('%H:%M:%S')
    state = {None: 'waits for its first file', True: 'goes on', False: 'has ended'}[running]
    if running is None and not folder.exists():
        state = 'waits for its folder, which does not exist'
    head = Text(f'{when}  the run in {printable(str(folder))} {state}', style='dim')
    try:
        files = find_files([folder])
        progress = progress_of(files.artifacts)
        if progress is not None:
            head.append(f'; {_in_words(progress)}')
        report = report_on_run(files)
        if running is False and report.attempts:
            head.append(f'; it {printable(became(report.attempts[-1]))}')
        return Group(head, verdict_text(report))
    except (SnapshotError, OSError):  # no file yet
        return head


def _in_words(progress: Progress) -> str:
    batches = f'{progress.first}' if progress.first == progress.last else f'{progress.first} to {progress.last}'
    parts = [f'batch {batches}']
    if progress.seconds_per_batch is not None:
        parts.append(f'{amount(progress.seconds_per_batch, "seconds")} a batch')
    if progress.samples_per_second is not None:
        parts.append(f'{progress.samples_per_second:,.1f} samples/s a rank')
    return ', '.join(parts)
