"""``memory_budget.yaml``: the runs of a budget. People write it; a new run is added at its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from composer_memprof.budget.measures import Measure
from composer_memprof.budget.runs import Run, run_of
from composer_memprof.messages import allowed_are, must_be
from composer_memprof.redaction import one_line

DEFAULT = 'memory_budget.yaml'
_HEAD = """\
# What these runs may come to on a simulated GPU. composer-memprof check holds them to it, check --update records anew.
# A limit is absolute, such as 30 GiB or 80 ms, or a share above the recorded figure, such as 1 %.
runs:
"""


class BudgetError(ValueError):
    """A user's mistake in a budget: one line with the file, the key and what is allowed."""


def read_budget(path: Path) -> dict[str, Run]:
    """The runs by name.

    Raises:
        BudgetError: if it can't be read, or a setting is not allowed.
    """
    runs = _runs(path)
    found = {}
    for name, settings in runs.items():
        where = f'{path}: runs.{name}'
        if not isinstance(settings, Mapping):
            raise BudgetError(str(must_be(where, 'a mapping such as {config: quickstart, gpu: t4}', settings)))
        try:
            found[str(name)] = run_of(str(name), {str(key): value for key, value in settings.items()}, where)
        except ValueError as error:
            raise BudgetError(str(error)) from None
    return found


def add_run(path: Path, name: str, settings: Mapping[str, Any], measures: Iterable[Measure]) -> Run:
    """Append a run with the usual limits of ``measures`` to the file, which is made if it is not there.

    Raises:
        BudgetError: if it can't be written, or its own form does not allow that.
    """
    before = path.read_text(encoding='utf-8') if path.exists() else _HEAD
    limits = {measure.key: measure.usual for measure in measures}
    lines = [f'  {json.dumps(name)}:' if name != _plain(name) else f'  {name}:']
    lines += [f'    {key}: {_plain(value)}' for key, value in settings.items()]
    lines.append(f'    allowed: {_plain(limits)}')
    text = f'{before.rstrip()}\n' + '\n'.join(lines) + '\n'
    expected = run_of(name, {**settings, 'allowed': limits})
    try:
        is_right = run_of(name, yaml.safe_load(text)['runs'][name]) == expected
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise BudgetError(
            f'{path}: the run cannot be added at its end; write it there: {name}: {_plain(dict(settings))}'
        )
    path.write_text(text, encoding='utf-8')
    return expected


def _runs(path: Path) -> Mapping[Any, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BudgetError(f'{path} cannot be read: {one_line(error)}') from None
    if not isinstance(values, dict):
        raise BudgetError(str(must_be(str(path), 'a mapping with the key runs', values)))
    for key in values:
        if key != 'runs':
            raise BudgetError(f'{path}: {key} is unknown; {allowed_are(["runs"], key)}')
    runs = values.get('runs')
    if not isinstance(runs, dict) or not runs:
        raise BudgetError(str(must_be(f'{path}: runs', 'a mapping of names to runs', runs)))
    return runs


def _plain(value: Any) -> str:
    """A value in one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix('...\n').rstrip('\n')
