"""The line at the end of a run: how many files were written, where, and the command that reads them.

Callbacks report their files as they close. The line comes once for all of a Trainer's, after the last of them is closed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from composer.utils import dist

from composer_memprof.messages import count_of, errors_logged, printable

#: Files by folder, of callbacks that were closed since the last line.
_written: Counter[Path] = Counter()
#: Folders whose files somebody else lists.
_listed_elsewhere: set[Path] = set()


def add_files(folder: Path, files: int) -> None:
    """A callback was closed, with ``files`` in ``folder``."""
    _written[folder] += files


def leave_out(folders: Iterable[Path]) -> None:
    """Say nothing of these folders in this process: their files are listed elsewhere."""
    _listed_elsewhere.update(folders)


def forget_files() -> None:
    """In a forked child: the files are its parent's to name."""
    _written.clear()


def say_what_was_written() -> None:
    """Print the line on stderr, on the first rank, if there are files that it has not named yet. Never raises."""
    found = {folder: files for folder, files in _written.items() if files and folder not in _listed_elsewhere}
    _written.clear()
    with errors_logged('the last line could not be printed'):
        if found and dist.get_global_rank() == 0:
            print(_line(found), file=sys.stderr, flush=True)


def _line(files: dict[Path, int]) -> str:
    of_rank = ' of rank 0' if dist.get_world_size() > 1 else ''
    places = [f'{count_of(number, "file")}{of_rank} in {_shown(folder)}' for folder, number in sorted(files.items())]
    folders = ' '.join(shlex.quote(_shown(folder)) for folder in _named_together(sorted(files)))
    return f'composer_memprof: {", ".join(places)}; composer-memprof report {folders}'


def _named_together(folders: list[Path]) -> list[Path]:
    """The run's folder that holds them, if there is nothing else in it, such as those of another run."""
    parents = {folder.parent for folder in folders} - {Path.cwd()}
    with contextlib.suppress(OSError):
        if len(folders) > 1 and len(parents) == 1 and set(folders) == set(folders[0].parent.iterdir()):
            return [folders[0].parent]
    return folders


def _shown(folder: Path) -> str:
    """From the working directory, if it is inside of it."""
    try:
        return printable(str(folder.relative_to(os.getcwd())))
    except (ValueError, OSError):
        return printable(str(folder))
