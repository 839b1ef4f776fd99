"""Reading files that are not trusted, on this disk or from a store, for all commands."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from composer_memprof.terminal import say

if TYPE_CHECKING:
    from composer_memprof.analysis.stored_runs import LocalRun


@contextlib.contextmanager
def on_this_disk(paths: list[str], choose: Callable[[Path], Iterable[Path]]) -> Iterator[list[LocalRun]]:
    """The runs or files at paths or addresses of stores; turns errors into one line and an exit code."""
    from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
    from composer_memprof.analysis.stored_runs import local_run
    from composer_memprof.artifacts.reading.fetching import FetchError

    with contextlib.ExitStack() as stack:
        try:
            runs = [stack.enter_context(local_run(path, choose)) for path in paths]
        except (SnapshotError, FetchError) as error:
            say(str(error))
            raise typer.Exit(2 if isinstance(error, FetchError) else 1) from None
        yield runs


@contextlib.contextmanager
def file_errors_in_one_line(*paths: Path, named: Callable[[str], str] = str, more_seconds: float = 0) -> Iterator[None]:
    """Read files that are not trusted: limits the time, and turns errors into one line and an exit code.

    Args:
        paths (Path): what is read.
        named (Callable): puts the names that the user gave into a message. Default: it is left as it is.
        more_seconds (float): for what else is done with them. Default: 0.
    """
    from composer_memprof.analysis.snapshot.limits import run_in_child_with_time_limit, seconds_to_read
    from composer_memprof.analysis.snapshot.loading import SnapshotError

    try:
        run_in_child_with_time_limit(seconds_to_read(paths) + more_seconds)
    except TimeoutError as error:
        names = named(' and '.join(map(str, paths)))
        say(f'{names}: {error}; a valid snapshot of this size takes a fraction of that time')
        raise typer.Exit(1) from None

    try:
        # Python itself writes a second line when memory runs out inside a buffer.
        with os_errors_in_one_line(named), contextlib.redirect_stderr(io.StringIO()):
            yield
    except SnapshotError as error:
        say(named(str(error)))
        raise typer.Exit(1) from None


@contextlib.contextmanager
def os_errors_in_one_line(named: Callable[[str], str] = str) -> Iterator[None]:
    """Turns an OSError into one line and an exit code; ``named`` as of :func:`file_errors_in_one_line`."""
    try:
        yield
    except OSError as error:
        say(f'{named(str(error.filename or "the file"))!r} cannot be read: {error.strerror or error}')
        raise typer.Exit(2) from None
