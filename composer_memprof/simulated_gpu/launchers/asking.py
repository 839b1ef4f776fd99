"""A launcher that can only be asked by running it: it runs up to where it would start its ranks.

Called as ``python -m composer_memprof.simulated_gpu.launchers.asking LAUNCHER RANK ARGUMENTS…`` in the environment of the
launcher, so that it counts the GPUs of the simulated machine. The answer is the last line of the output, as JSON.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import types
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Optional

#: Before the answer: launchers print lines of their own.
ANSWER = 'composer_memprof launch: '


class _Starts(Exception):  # noqa: N818 (it is no error)
    """The launcher has come to the start of its ranks."""


def main(launcher: str, rank: int, arguments: Sequence[str]) -> None:
    """Print what the launcher would start for one rank."""
    before = dict(os.environ)
    answer = _LAUNCHERS[launcher](rank, list(arguments))
    variables = answer.pop('variables')
    changed = {name: value for name, value in variables.items() if before.get(name) != value}
    print(f'\n{ANSWER}{json.dumps({**answer, "variables": changed})}')


def _accelerate(rank: int, arguments: list[str]) -> dict[str, Any]:
    """``accelerate launch``: it ends in the start of one process, in torchrun, or in the launcher of DeepSpeed."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from accelerate.utils import launch as starting

    starting.is_port_in_use = lambda *_: False  # no other rank comes to it
    started = _until_it_starts(lambda: launch_command(launch_command_parser().parse_args(arguments)))
    if 'torchrun' in started:
        return started
    command = started['command']
    if command[0] == 'deepspeed':
        os.environ.update(started['variables'])
        return _deepspeed(rank, command[1:])
    return {**started, 'ranks': None, 'per_node': None}


def _deepspeed(rank: int, arguments: list[str]) -> dict[str, Any]:
    """``deepspeed``: it starts a launcher on each node, here on the node of the rank alone."""
    from deepspeed.launcher import launch, runner

    alone = ['--no_ssh', '--node_rank=0', '--master_addr=127.0.0.1']
    started = _until_it_starts(lambda: runner.main([*alone, *arguments]))
    words = started['command'][started['command'].index('deepspeed.launcher.launch') + 1 :]
    encoded = next(word.partition('=')[2] for word in words if word.startswith('--world_info='))
    sizes = [len(devices) for devices in json.loads(base64.urlsafe_b64decode(encoded)).values()]
    if len(set(sizes)) > 1:
        raise ValueError('the nodes have different numbers of GPUs, which is not simulated')
    sys.argv[1:] = [f'--node_rank={rank // sizes[0]}' if word.startswith('--node_rank=') else word for word in words]
    os.environ.update(started['variables'])
    of_rank = _until_it_starts(launch.main, rank)
    return {**of_rank, 'ranks': sum(sizes), 'per_node': sizes[0]}


_LAUNCHERS: dict[str, Callable[[int, list[str]], dict[str, Any]]] = {'accelerate': _accelerate, 'deepspeed': _deepspeed}


def _until_it_starts(launch: Callable[[], Any], rank: Optional[int] = None) -> dict[str, Any]:
    """What a launcher starts, which is not started: a command with its variables, or the arguments of torchrun.

    Args:
        rank: of the process that is looked for among several; None for the first.
    """
    from torch.distributed import run as torchrun

    started: dict[str, Any] = {}

    def no_process(command: Sequence[str], *others: Any, env: Optional[Mapping[str, str]] = None, **more: Any) -> Any:
        # its output is read, such as that of nvidia-smi; or an import has started torch's compiler
        if more.get('stdout') == subprocess.PIPE or _starter() == 'torch':
            return process(command, *others, env=env, **more)
        variables = dict(os.environ if env is None else env)
        if rank is not None and variables['RANK'] != str(rank):
            return types.SimpleNamespace(pid=0)
        started.update(command=list(command), variables=variables)
        raise _Starts

    def no_torchrun(given: Namespace) -> NoReturn:
        started.update(torchrun=vars(given), variables=dict(os.environ))
        raise _Starts

    process: Any = subprocess.Popen
    run = torchrun.run
    subprocess.Popen = no_process  # type: ignore[assignment, misc]
    torchrun.run = no_torchrun
    try:
        launch()
    except _Starts:
        return started
    finally:
        subprocess.Popen, torchrun.run = process, run  # type: ignore[misc]
    raise ValueError('it starts nothing')


def _starter() -> str:
    """The package that starts a process."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get('__name__') in (__name__, 'subprocess'):
        frame = frame.f_back
    return str(frame.f_globals.get('__name__')).partition('.')[0]


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
