"""``plan``: whether a config fits on a GPU that is not there, and what to change."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from rich.console import RenderableType

from composer_memprof.analysis.typed_json import from_plain
from composer_memprof.interface.errors import errors_as_one
from composer_memprof.interface.settings import File, check_settings
from composer_memprof.interface.shown import Shown
from composer_memprof.messages import MemprofError
from composer_memprof.plans.output.text import plan_text
from composer_memprof.plans.result import Plan
from composer_memprof.plans.starting import NoPlanError, plan_of_process, planning_process
from composer_memprof.schemas import versioned
from composer_memprof.simulated_gpu.building import CannotSimulateError
from composer_memprof.simulated_gpu.devices import device_asked_for

#: How messages of the command begin.
_PREFIX = 'composer-memprof: '


@dataclass(frozen=True)
class Planned(Shown):
    """What the trials of a config came to. Sizes are in bytes.

    ``print`` shows it as ``composer-memprof plan`` does, a notebook as tables, and :meth:`to_dict` is what ``--json``
    prints.

    Attributes:
        plan: the outcome of the config, of each change and of each variation.
    """

    plan: Plan

    @property
    def fits(self) -> Optional[bool]:
        """Whether the config as it is fits; None if it did not run."""
        return self.plan.fits

    @property
    def verdict(self) -> str:
        """In words: ``'fits'``, ``'fits with less than 5 % to spare'``, ``'does not fit'`` or ``'not seen'``."""
        return self.plan.verdict

    def text(self) -> RenderableType:
        return plan_text(self.plan)

    def to_dict(self) -> dict[str, Any]:
        """What ``composer-memprof plan --json`` prints."""
        return versioned('plan', self.plan.as_dict())


def plan(
    config: File,
    overrides: Union[Mapping[str, Any], Sequence[str]] = (),
    *,
    gpu: Optional[str] = None,
    memory: Optional[str] = None,
    compute_capability: str = '9.0',
    ranks: int = 1,
    ranks_per_node: Optional[int] = None,
    vary: Optional[Mapping[str, Sequence[Any]]] = None,
    changes: bool = True,
    evaluation: bool = False,
) -> Planned:
    """Say whether a config fits on a GPU, what fills its memory, and what to change. Needs no GPU.

    Each figure is that of a trial: two batches on a simulated GPU, in a process of its own. This one imports no Composer
    for it, and starts no CUDA.

    >>> from composer_memprof import plan
    >>> found = plan('quickstart', {'model.n_layers': 1}, gpu='t4', changes=False)
    >>> found.verdict, found.plan.outcome.microbatch
    ('fits', 16)

    Args:
        config (str | PathLike): a YAML file, or the name of a config that ships, such as ``'quickstart'``.
        overrides (Mapping[str, Any] | Sequence[str]): settings to change, as ``{'model.n_layers': 1}`` or
            ``['model.n_layers=1']``. Default: none.
        gpu (str, optional): the kind of GPU. Default: ``'h100-80gb'``.
        memory (str, optional): its memory, such as ``'24GB'``; without ``gpu``, of one made by hand.
        compute_capability (str): of one made by hand. Default: ``'9.0'``.
        ranks (int): how many GPUs it trains on. Default: ``1``.
        ranks_per_node (int, optional): Default: 8, or all if they are fewer.
        vary (Mapping[str, Sequence], optional): for each key the values to try; several keys make a grid, which is tried in
            place of the changes.
        changes (bool): search the largest microbatch, and try what could be changed. Default: ``True``.
        evaluation (bool): evaluate, if the config does, and write a checkpoint after each batch. Default: ``False``.

    Raises:
        MemprofError: for what can't be planned, in one line. A config that does not run raises nothing: the verdict is
            ``'not seen'``, and ``found.plan.outcome.error`` says why.
    """
    with errors_as_one(ValueError, CannotSimulateError):
        check_settings(
            {'ranks': ranks, 'ranks_per_node': ranks_per_node}, {}, {'changes': changes, 'evaluation': evaluation}
        )
        command, environment = planning_process(
            os.fspath(config),
            _assignments(overrides),
            device_asked_for(gpu, memory, compute_capability),
            ranks,
            ranks_per_node,
            [(key, [_as_yaml(value) for value in values]) for key, values in (vary or {}).items()],
            changes,
            with_evaluation=evaluation,
        )
    try:
        return Planned(from_plain(Plan, plan_of_process(command, environment, stdin=subprocess.DEVNULL)[0]))
    except NoPlanError as error:
        lines = error.said or [f'the plan ended with code {error.code}, and printed nothing']
        said = [line for line in lines if line.startswith(_PREFIX)] or lines
        raise MemprofError(said[-1].removeprefix(_PREFIX)) from None


def _assignments(overrides: Union[Mapping[str, Any], Sequence[str]]) -> list[str]:
    if isinstance(overrides, str):
        return [overrides]
    if isinstance(overrides, Mapping):
        return [f'{key}={_as_yaml(value)}' for key, value in overrides.items()]
    return list(overrides)


def _as_yaml(value: Any) -> str:
    """A value as YAML has it within a line, which JSON is.

    >>> _as_yaml(True), _as_yaml([1, 'a']), _as_yaml('10ba')
    ('true', '[1, "a"]', '10ba')
    """
    return value if isinstance(value, str) else json.dumps(value)
