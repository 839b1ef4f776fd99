"""The command of one rank, from the command that launches all: ``composer``, ``torchrun`` and their modules.

Each launcher's own parser reads its arguments, so they mean here what they mean there.
"""

from __future__ import annotations

import os
import shutil
import string
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from composer_memprof.simulated_gpu import ranks as simulated_ranks

#: What launchers start where they are told to start one process for each GPU, or nothing.
_GPUS_OF_A_NODE = 8
_COMPOSER = ('composer', 'composer.cli', 'composer.cli.launcher')
_TORCHRUN = ('torchrun', 'torch.distributed.run')
_NOT_UNDERSTOOD = (
    *('accelerate', 'accelerate.commands.launch', 'deepspeed', 'horovodrun', 'mpirun', 'mpiexec', 'srun'),
    'torch.distributed.launch',
)
#: Python's options that have a value of their own.
_WITH_VALUE = ('-W', '-X', '--check-hash-based-pycs')


class NotUnwrappedError(ValueError):
    """The command of one rank can't be told from this command; the message says what to write instead."""


class Launch(NamedTuple):
    """One rank's command, and how many there are: None if the command launches no ranks."""

    command: list[str]
    ranks: Optional[int] = None
    ranks_per_node: Optional[int] = None


def unwrapped(command: Sequence[str], *, rank: int = 0, ranks_per_node: Optional[int] = None) -> Launch:
    """The command that a launcher would start for one rank. Another command stays as it is.

    A launcher's own complaint about its arguments is printed, and ends the process, as when it is called itself.

    Args:
        rank: which rank's command, for arguments such as ``$RANK``.
        ranks_per_node: what a launcher starts that is told ``gpu``, ``auto`` or nothing. Default: 8.

    >>> unwrapped(['torchrun', '--nproc_per_node', '4', '--nnodes', '2', 'train.py', '--lr=1'])[1:]
    (8, 4)
    >>> unwrapped(['python', 'train.py']).command
    ['python', 'train.py']

    Raises:
        NotUnwrappedError: if it is a launcher that is not known here, or nodes have different numbers of ranks.
    """
    python, launcher, arguments = _launcher_of(list(command))
    on_node = ranks_per_node or _GPUS_OF_A_NODE
    if launcher in _COMPOSER:
        return _of_composer(python, arguments, rank, on_node)
    if launcher in _TORCHRUN:
        return _of_torchrun(python, arguments, on_node)
    if launcher in _NOT_UNDERSTOOD:
        raise NotUnwrappedError(
            f"{launcher} is not simulated: leave it out, and say '--ranks N -- python SCRIPT' or '-- torchrun …' instead"
        )
    return Launch(list(command))


def _launcher_of(command: list[str]) -> tuple[list[str], str, list[str]]:
    """The Python with its options, the name of the program or module, and its arguments."""
    if not command:
        return [], '', []
    name = Path(command[0]).name
    if not name.startswith('python'):
        return [_python_beside(command[0])], name, command[1:]
    at = 1
    while at < len(command) and command[at].startswith('-'):
        if command[at] == '-m' and at + 1 < len(command):
            return command[:at], command[at + 1], command[at + 2 :]
        if command[at] == '-c':
            break
        at += 2 if command[at] in _WITH_VALUE else 1
    if at < len(command):  # a launcher's own script: python .venv/bin/torchrun …
        return command[:at], Path(command[at]).name, command[at + 1 :]
    return command, '', []


def _python_beside(program: str) -> str:
    """The Python of the environment that the program is installed in."""
    found = shutil.which(program)
    beside = Path(found).parent / 'python' if found else None
    return str(beside) if beside is not None and beside.exists() else sys.executable


def _of_composer(python: list[str], arguments: list[str], rank: int, on_node: int) -> Launch:
    from composer.cli.launcher import _get_parser

    parser: ArgumentParser = _get_parser()
    given: Namespace = parser.parse_args(arguments)
    per_node = given.nproc or int(os.environ.get('LOCAL_WORLD_SIZE') or on_node)
    ranks = given.world_size or per_node
    if given.module_mode and given.command_mode:
        parser.error('Either `command_mode` or `module_mode` should be set, but not both.')
    start = [] if given.command_mode else [*python, '-u', *(['-m'] if given.module_mode else [])]
    variables = {**os.environ, **_environment(ranks, rank, per_node)}
    expanded = (
        string.Template(os.path.expanduser(one)).safe_substitute(variables) for one in given.training_script_args
    )
    return Launch([*start, given.training_script, *expanded], ranks, per_node)


def _of_torchrun(python: list[str], arguments: list[str], on_node: int) -> Launch:
    from torch.distributed.run import get_args_parser, parse_min_max_nnodes

    parser = get_args_parser()
    given = parser.parse_args(arguments)
    _, nodes = parse_min_max_nnodes(given.nnodes)
    words = ('gpu', 'auto', 'cuda', 'cpu', 'xpu')
    per_node = on_node if given.nproc_per_node in words else _number(given.nproc_per_node)
    if given.no_python and given.module:
        parser.error("Don't use both the '--no-python' flag and the '--module' flag at the same time.")
    start = [] if given.no_python else [*python, '-u', *(['-m'] if given.module else [])]
    return Launch([*start, given.training_script, *given.training_script_args], nodes * per_node, per_node)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise NotUnwrappedError(f"torchrun: --nproc-per-node={text!r} must be a number, 'gpu' or 'auto'") from None


def _environment(ranks: int, rank: int, per_node: int) -> dict[str, str]:
    try:
        return simulated_ranks.environment(ranks, rank, per_node)
    except ValueError as error:
        raise NotUnwrappedError(f'composer: {error}') from None
