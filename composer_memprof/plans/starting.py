"""Starts ``plan`` in this process's place: the simulated GPU must be there before Python starts."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Optional

from composer_memprof.simulated_gpu import ranks as simulated_ranks
from composer_memprof.simulated_gpu.building import CannotSimulateError
from composer_memprof.simulated_gpu.calibration import Factors
from composer_memprof.simulated_gpu.devices import Device
from composer_memprof.simulated_gpu.environment import environment_with
from composer_memprof.simulated_gpu.outside import outside_of
from composer_memprof.simulated_gpu.rates import UnknownRateError, rates_of

_SETTINGS = 'PYTORCH_CUDA_ALLOC_CONF'


def start(*arguments: Any, **named: Any) -> NoReturn:
    """Replace this process by one on the simulated GPU that makes the plan; arguments as of :func:`planning_process`."""
    command, environment = planning_process(*arguments, **named)
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until the new program can end in one line
    os.execve(sys.executable, command, environment)  # noqa: S606 (no shell is wanted)


class NoPlanError(Exception):
    """The process of a plan ended without one.

    Attributes:
        code: its exit code.
        said: the lines of its messages.
    """

    def __init__(self, code: int, said: list[str]) -> None:
        super().__init__(f'no plan, and exit code {code}')
        self.code = code
        self.said = said


def plan_of_process(
    command: Sequence[str], environment: Mapping[str, str], **settings: Any
) -> tuple[dict[str, Any], int]:
    """The plan that a process of :func:`planning_process` prints, as its JSON has it, and its exit code.

    Args:
        settings: as of :func:`subprocess.run`.

    Raises:
        NoPlanError: if it prints none.
    """
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors='replace', check=False, **settings
    )
    try:
        return json.loads(done.stdout), done.returncode
    except ValueError:
        raise NoPlanError(done.returncode, done.stderr.strip().splitlines()) from None


def planning_process(
    config: str,
    overrides: Sequence[str],
    device: Device,
    ranks: int,
    ranks_per_node: Optional[int] = None,
    vary: Sequence[tuple[str, Sequence[str]]] = (),
    changes: bool = True,
    as_json: bool = True,
    advised: Optional[Sequence[str]] = None,
    allocator: Optional[str] = None,
    fastest: bool = False,
    factors: Optional[Factors] = None,
    with_evaluation: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a process on the simulated GPU that makes the plan.

    Args:
        ranks_per_node: None for 8, or all ranks if they are fewer.
        advised: as of :func:`composer_memprof.plans.planning.plan`.
        allocator: ``PYTORCH_CUDA_ALLOC_CONF``. Default: this process's.
        fastest: search the fastest config that fits, in place of the changes.
        factors: of durations; None for 1.
        with_evaluation: each trial evaluates and writes checkpoints.

    Raises:
        CannotSimulateError: where no GPU can be simulated.
        ValueError: if the ranks do not fill their nodes, or nothing can be said of what is the fastest.
    """
    simulated_ranks.environment(ranks, ranks_per_node=ranks_per_node)
    if fastest:
        _check_that_speed_is_known(device)
        if vary:
            raise ValueError('--fastest tries settings of its own, so that it takes no --vary')
    if importlib.util.find_spec('composer') is None:
        raise CannotSimulateError(
            'a plan trains with Composer, which is not installed: pip install mosaicml. simulate needs none'
        )
    outside = outside_of(device, ranks)
    environment = environment_with(
        device, devices=ranks_per_node or min(2 * ranks, 8), outside=outside.bytes, values=True
    )
    # These messages help nobody here.
    calibrated = {} if factors is None else factors.as_environment()
    quiet = {'KINETO_LOG_LEVEL': '99', 'TORCH_CPP_LOG_LEVEL': 'ERROR', 'PYTHONWARNINGS': 'ignore'}
    asked = {
        'config': config,
        'overrides': list(overrides),
        'ranks': ranks,
        'ranks_per_node': ranks_per_node,
        'allocator': os.environ.get(_SETTINGS, '') if allocator is None else allocator,
        'device': {'gpu': device.key, 'total': device.total_memory, 'outside': dataclasses.asdict(outside)},
        'vary': list(vary),
        'changes': changes,
        'advised': None if advised is None else list(advised),
        'fastest': fastest,
        'with_evaluation': with_evaluation,
        'as_json': as_json,
    }
    return [sys.executable, '-m', 'composer_memprof.plans', json.dumps(asked)], {**environment, **quiet, **calibrated}


def _check_that_speed_is_known(device: Device) -> None:
    try:
        rates_of(device.key)
    except UnknownRateError:
        raise ValueError(f'--fastest: nothing is known of the speed of {device.key}; name a GPU with --gpu') from None


def parsed_variation(text: str) -> tuple[str, list[str]]:
    """``key=a,b,c`` as the key and its values. Commas within brackets separate nothing.

    >>> parsed_variation('optimizer={name:sgd,lr:1},{name:adamw}')
    ('optimizer', ['{name:sgd,lr:1}', '{name:adamw}'])

    Raises:
        ValueError: if it is not of this form.
    """
    key, found, rest = text.partition('=')
    if not found or not key or not rest:
        raise ValueError(f'--vary={text!r} must be key=value,value,…, such as device_train_microbatch_size=1,2,4')
    values, depth = [''], 0
    for letter in rest:
        depth += (letter in '{[(') - (letter in '}])')
        if letter == ',' and depth == 0:
            values.append('')
        else:
            values[-1] += letter
    return key, values
