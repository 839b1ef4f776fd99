"""The run's name in paths. A run that another process is writing under the same name is left alone: this one gets ``.2``."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from composer.core import State
from composer.utils import dist

from composer_memprof.artifacts.naming.names import check_run_name, folder_of, has_variable
from composer_memprof.artifacts.writing.folder import is_taken
from composer_memprof.callbacks.framework.options import Output
from composer_memprof.messages import warn

#: The number of a run among live runs of its name, by its Trainer's state.
_numbers: weakref.WeakKeyDictionary[State, int] = weakref.WeakKeyDictionary()


def run_name_of(state: State) -> str:
    """The run's name in paths and addresses."""
    return _numbered(state.run_name, _number_of(state))


def run_folder(template: str, state: State, rank: Optional[int] = None) -> Path:
    """The run's folder of this process, or of another ``rank``, from a template over run variables.

    Raises:
        ValueError: if the home folder is not known.
    """
    return _folder(template, state.run_name, _number_of(state), rank)


def run_folders(template: str, state: State) -> set[Path]:
    """The run's folders of all ranks: one for all, unless the template has a variable that differs between ranks.

    Raises:
        ValueError: if the home folder is not known.
    """
    return {run_folder(template, state, rank) for rank in range(dist.get_world_size())}


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f'{name}.{number}'


def _folder(template: str, run_name: str, number: int, rank: Optional[int] = None) -> Path:
    if has_variable(template, 'run_name'):
        return folder_of(template, _numbered(run_name, number), rank)
    folder = folder_of(template, run_name, rank)
    return folder.with_name(_numbered(folder.name, number)) if number > 1 else folder


def _number_of(state: State) -> int:
    if state not in _numbers:
        outputs = (getattr(callback, 'output', None) for callback in state.callbacks)
        templates = {output.folder for output in outputs if isinstance(output, Output)}
        check_run_name(state.run_name, *templates)
        _numbers[state] = number = _first_free(templates, state.run_name)
        if number > 1:
            folders = sorted(str(_folder(template, state.run_name, 1)) for template in templates)
            warn(
                f'another process is writing the run {state.run_name!r} in {", ".join(map(repr, folders))}. The files of '
                f'this run are named {_numbered(state.run_name, number)!r}. Give each run a run_name of its own'
            )
    return _numbers[state]


def _first_free(templates: Iterable[str], run_name: str) -> int:
    number = 1
    while any(is_taken(_folder(template, run_name, number)) for template in templates):
        number += 1
    return number
