"""``composer_memprof.plan``: what the command prints, as an object."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import pytest

import composer_memprof
from composer_memprof import MemprofError
from tests.conftest import child_environment, simulated_gpu
from tests.support.json_schemas import as_promised
from tests.support.processes import warm_python
from tests.support.processes.simulated_runs import plan_on_a_server

pytestmark = pytest.mark.slow

SETTINGS = ('model.n_layers=1', 'model.d_model=64', 'model.n_heads=2')
PROGRAM = """
import json, sys
from composer_memprof import plan
found = plan('quickstart', {'model.n_layers': 1, 'model.d_model': 64, 'model.n_heads': 2}, gpu='t4',
    vary={'precision': ['fp32']}, changes=False)
print(json.dumps(found.to_dict()))
print(json.dumps(str(found)))
print(found.fits, '<table' in found._repr_html_(), {'torch', 'composer'} & set(sys.modules))
"""


def untimed(values: dict[str, Any]) -> dict[str, Any]:
    for outcome in (values['outcome'], *(row['outcome'] for row in values['grid'])):
        del outcome['seconds'], outcome['time']  # as long as it took this machine
        outcome.pop('places', None)  # with the frames of the process that was forked
    return values


def test_a_plan_is_what_the_command_prints_and_this_process_imports_no_composer() -> None:
    simulated_gpu()  # skips where there is none
    done = subprocess.run(
        [sys.executable, '-c', PROGRAM],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed, text, facts = done.stdout.splitlines()
    values = untimed(as_promised('plan', printed))
    command = plan_on_a_server('--gpu', 't4', '--vary', 'precision=fp32', '--json', 'quickstart', *SETTINGS)
    assert values == untimed(as_promised('plan', command.stdout))
    assert json.loads(text).startswith('simulated t4: fits. Needs ') and 'precision=fp32' in text
    assert facts == 'True True set()'


def test_a_mistake_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **settings: Any) -> str:
        with pytest.raises(MemprofError) as error:
            composer_memprof.plan(*arguments, **settings)
        return str(error.value)

    assert "there is no GPU named 'h10'" in refused('quickstart', gpu='h10')
    assert refused('quickstart', ranks=0) == 'ranks must be a whole number from 1, not 0'
    simulated_gpu()
    monkeypatch.setattr(subprocess, 'run', functools.partial(warm_python.run, own_server=True))
    unknown = refused('no_such_config')
    assert 'no_such_config' in unknown and 'composer-memprof' not in unknown and '\n' not in unknown
