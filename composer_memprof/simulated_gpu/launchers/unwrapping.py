"""Finds the launcher in a command, and what it would start for one rank."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import string
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from composer_memprof.simulated_gpu import ranks as simulated_ranks
from composer_memprof.simulated_gpu.launchers.asking import ANSWER

#: What launchers start where they are told to start one process for each GPU, or nothing.
_GPUS_OF_A_NODE = 8
_COMPOSER = ('composer', 'composer.cli', 'composer.cli.launcher')
_TORCHRUN = ('torchrun', 'torch.distributed.run')
_LAUNCH = 'torch.distributed.launch'
#: Those that are asked in a process of their own, by their names and modules.
_ASKED = {
    'accelerate': 'accelerate',
    'accelerate-launch': 'accelerate',
    'accelerate.commands.launch': 'accelerate',
    'accelerate.commands.accelerate_cli': 'accelerate',
    'deepspeed': 'deepspeed',
    'deepspeed.launcher.runner': 'deepspeed',
}
_ASKING = 'composer_memprof.simulated_gpu.launchers.asking'
#: As long as a launcher may take to read its arguments, in seconds.
_PATIENCE_S = 300
_NOT_UNDERSTOOD = ('horovodrun', 'mpirun', 'mpiexec', 'srun')
#: What torchrun tells a rank of itself; Lightning and others look for it.
_ELASTIC = {'TORCHELASTIC_RUN_ID': 'none', 'TORCHELASTIC_RESTART_COUNT': '0', 'TORCHELASTIC_MAX_RESTARTS': '0'}
#: Ranks that stand for all see all devices of the simulated machine.
_OF_THE_MACHINE = ('CUDA_VISIBLE_DEVICES', 'RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')
#: Python's options that have a value of their own.
_WITH_VALUE = ('-W', '-X', '--check-hash-based-pycs')


class NotUnwrappedError(ValueError):
    """The command of one rank can't be told from this command; the message says what to write instead."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """One rank's command.

    Attributes:
        ranks: how many there are; None if the command launches no ranks.
        ranks_per_node: of these.
        variables: what the launcher adds to the environment, beside each rank's place.
    """

    command: list[str]
    ranks: Optional[int] = None
    ranks_per_node: Optional[int] = None
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


def unwrapped(
    command: Sequence[str],
    *,
    rank: int = 0,
    ranks_per_node: Optional[int] = None,
    machine: Callable[[int], Mapping[str, str]] = lambda devices: os.environ,
) -> Launch:
    """The command that a launcher would start for one rank. Another command stays as it is.

    A launcher's own complaint about its arguments is printed, and ends the process, as when it is called itself.

    Args:
        rank: which rank's command, for arguments such as ``$RANK``.
        ranks_per_node: what a launcher starts that is told ``gpu``, ``auto`` or nothing. Default: 8.
        machine: the environment of a process on a machine with so many GPUs, for launchers that count them.

    >>> launch = unwrapped(['torchrun', '--nproc_per_node', '4', '--nnodes', '2', 'train.py', '--lr=1'])
    >>> launch.ranks, launch.ranks_per_node
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
        from torch.distributed.run import get_args_parser

        return _of_torchrun(python, get_args_parser().parse_args(arguments), rank, on_node)
    if launcher == _LAUNCH:
        from torch.distributed.launch import parse_args

        return _of_torchrun(python, parse_args(arguments), rank, on_node)
    if launcher in _ASKED and not (launcher == 'accelerate' and arguments[:1] != ['launch']):
        if launcher in ('accelerate', 'accelerate.commands.accelerate_cli'):
            arguments = arguments[1:]
        return _of_asked(python, _ASKED[launcher], arguments, rank, on_node, machine(on_node))
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
    try:
        from composer.cli.launcher import _get_parser
    except ModuleNotFoundError:
        raise NotUnwrappedError('composer: mosaicml is not installed: pip install mosaicml') from None

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


def _of_torchrun(python: list[str], given: Namespace, rank: int, on_node: int) -> Launch:
    from torch.distributed.run import get_args_parser, parse_min_max_nnodes

    _, nodes = parse_min_max_nnodes(given.nnodes)
    words = ('gpu', 'auto', 'cuda', 'cpu', 'xpu')
    per_node = on_node if given.nproc_per_node in words else _number(given.nproc_per_node)
    if given.no_python and given.module:
        get_args_parser().error("Don't use both the '--no-python' flag and the '--module' flag at the same time.")
    start = [] if given.no_python else [*python, '-u', *(['-m'] if given.module else [])]
    # of torch.distributed.launch, which tells it to the script and not only to its environment
    place = [] if getattr(given, 'use_env', True) else [f'--local-rank={rank % per_node}']
    command = [*start, given.training_script, *place, *given.training_script_args]
    return Launch(command, nodes * per_node, per_node, _ELASTIC)


def _of_asked(
    python: list[str], launcher: str, arguments: list[str], rank: int, on_node: int, machine: Mapping[str, str]
) -> Launch:
    command = [*python, '-m', _ASKING, launcher, str(rank), *arguments]
    try:
        done = subprocess.run(command, env=machine, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotUnwrappedError(f'{launcher} cannot be asked what it would start: {error}') from None
    _, found, answer = done.stdout.rpartition(ANSWER)
    if not found:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NotUnwrappedError(f'{launcher}: {lines[-1] if lines else f"exit code {done.returncode}"}')
    values: dict[str, Any] = json.loads(answer)
    variables = {name: value for name, value in values['variables'].items() if name not in _OF_THE_MACHINE}
    if 'torchrun' in values:
        launch = _of_torchrun(python, Namespace(**values['torchrun']), rank, on_node)
        return dataclasses.replace(launch, variables={**launch.variables, **variables})
    return Launch(values['command'], values['ranks'], values['per_node'], variables)


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
