"""What is checked when the Trainer is made, because it depends on the run: ranks, names, the folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from composer.core import State
from composer.utils import dist

from composer_memprof.artifacts.naming.addresses import check_scheme
from composer_memprof.artifacts.naming.names import Stamp, check_run_name
from composer_memprof.callbacks.framework.options import Output, When
from composer_memprof.callbacks.framework.run_names import run_folder, run_name_of


def check_ranks(when: When) -> None:
    """Refuse ranks that this run does not have.

    Raises:
        ValueError: naming them.
    """
    world_size = dist.get_world_size()
    named = {*(when.ranks or ()), *when.schedule.named_ranks()}
    beyond = sorted(rank for rank in named if rank >= world_size)
    if beyond:
        raise ValueError(f'ranks={beyond} are beyond this run, which has ranks 0 to {world_size - 1}')
    size = dist.get_local_world_size()
    beyond = sorted(rank for rank in when.schedule.named_local_ranks() if rank >= size)
    if beyond:
        raise ValueError(f'local_ranks={beyond} are beyond this node, which has local ranks 0 to {size - 1}')


def check_output(output: Output, state: State) -> Path:
    """Refuse names that this run's name makes invalid, and a folder that can't be written. Returns the folder.

    Raises:
        ValueError: naming the parameter or the run name.
    """
    naming = output.naming
    check_run_name(state.run_name, output.folder, naming.filename, naming.remote)
    folder = run_folder(output.folder, state)
    check_writable(folder, output.folder)
    stamp = Stamp(run_name_of(state), state.timestamp)
    naming.local(stamp, naming.suffix, 1)
    if naming.remote is not None:
        check_scheme(naming.in_store(stamp, naming.suffix, 1, 'x') or '', 'remote_file_name')
    return folder


def check_writable(folder: Path, template: str) -> None:
    """Refuse a folder that can't be written to. Leaves nothing in it.

    Raises:
        ValueError: naming the folder and the reason.
    """
    nearest = folder.absolute()
    try:
        while not nearest.exists():
            nearest = nearest.parent
        if not nearest.is_dir():
            raise NotADirectoryError(f'{nearest} is not a directory')
        with tempfile.TemporaryFile(prefix='.memprof-', dir=nearest):
            pass
    except OSError as error:
        raise ValueError(f'folder={template!r}: nothing can be written to {str(folder)!r}: {error}') from error
