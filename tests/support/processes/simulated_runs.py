"""Runs of scripts and commands on simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Optional

from composer_memprof.simulated_gpu import ranks
from tests.conftest import run_command_that_simulates, simulated_gpu
from tests.support.json_schemas import as_promised
from tests.support.processes import warm_python

MIB = 1 << 20
#: So is the process of a plan. These are read at an import, so that all servers have them.
QUIET = {'KINETO_LOG_LEVEL': '99', 'TORCH_CPP_LOG_LEVEL': 'ERROR', 'PYTHONWARNINGS': 'ignore'}


def on_simulated_gpu(
    tmp_path: Path,
    code: str,
    *,
    kept: float = 1.0,
    devices: int = 1,
    values: bool = False,
    fails: bool = False,
    fresh: bool = False,
    **variables: str,
) -> dict[str, Any]:
    """What the script puts into ``found``, with ``stderr`` and ``notes``. With ``fresh``, libraries warn as a user's do."""
    environment = simulated_gpu(devices=devices, kept=kept, values=values)
    notes = tmp_path / 'notes.txt'
    script = tmp_path / 'script.py'
    head = 'import json, torch\nfound = {}\n'
    script.write_text(f'{head}{textwrap.dedent(code)}\nprint("\\n" + json.dumps(found))\n')
    environment |= {'SIMULATED_GPU_NOTES': str(notes), **({} if fresh else QUIET), **variables}
    usual = not fresh and all(
        name == 'PYTORCH_CUDA_ALLOC_CONF' and 'backend:' not in variables[name] for name in variables
    )
    ran = warm_python.run(
        [sys.executable, str(script)],
        own_server=usual,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (ran.returncode != 0) == fails, ran.stderr[-4000:]
    found = {} if fails else json.loads(ran.stdout.splitlines()[-1])
    return {**found, 'stderr': ran.stderr, 'notes': notes.read_text() if notes.exists() else ''}


def run_on_a_server(
    code: str, *arguments: str, environment: dict[str, str], cwd: Optional[Path] = None
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process that has imported torch on a simulated GPU, and is as quiet as a plan's."""
    return warm_python.run(
        [sys.executable, '-c', code, *arguments],
        own_server=True,
        env={**environment, **QUIET},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_rank(
    script: str,
    count: int = 8,
    rank: int = 0,
    gpu: str = 'a100-80gb',
    *,
    fresh: bool = False,
    values: bool = False,
    **variables: str,
) -> str:
    """What a script prints that stands for one rank. With ``fresh``, it imports torch itself."""
    place = ranks.environment(count, rank)
    # a port that nobody can listen on
    base = {**os.environ, **place, 'MASTER_PORT': '1', **variables}
    environment = simulated_gpu(gpu, devices=int(place['LOCAL_WORLD_SIZE']), values=values, base=base)
    if fresh:
        command = [sys.executable, '-c', script]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    else:
        ran = run_on_a_server(script, environment=environment)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-6000:]
    return ran.stdout


#: The command, which replaces its process by one on a simulated GPU. This process is on one already, and goes on.
PLAN = """
import os, runpy, sys

def go_on(program, command, environment):
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = command[2:]
    runpy.run_module(command[2], run_name='__main__', alter_sys=True)
    sys.exit()

os.execve = go_on
sys.argv[:] = ['composer-memprof', 'plan', *sys.argv[1:]]
from composer_memprof.cli import main
main()
"""


def plan_on_a_server(*arguments: str, cwd: Optional[Path] = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """``composer-memprof plan`` with the arguments, in such a process."""
    return run_on_a_server(PLAN, *arguments, environment={**simulated_gpu(values=True), **variables}, cwd=cwd)


# Four layers of 64 MiB, AdamW: parameters, gradients and two states are 1 GiB.
SCRIPT = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
loss = torch.ones(())
while not loss > 1:
    loss = model(torch.randn(64, 4096, device='cuda')).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


#: The command, in a process on a simulated GPU: the Python that it starts is forked from this process.
SIMULATE = """
import json, os, sys
from composer_memprof.cli import main
from composer_memprof.simulation import run
from tests.support.processes.forked_python import Popen
os.environ.clear()
os.environ.update(json.loads(sys.argv[1]))
run.subprocess.Popen = Popen
sys.argv[:] = ['composer-memprof', *sys.argv[2:]]
main()
"""


def simulate(*arguments: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """``composer-memprof simulate``. With ``fresh``, in processes that import torch, as a user's do."""
    if fresh or '--no-values' in arguments:  # values are followed from the import of torch on
        return run_command_that_simulates('simulate', *arguments)
    return on_a_server('simulate', *arguments)


def on_a_server(*arguments: str, cwd: Optional[Path] = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """``composer-memprof`` with the arguments; each Python that it starts is a fork."""
    environment = json.dumps({**os.environ, **variables})
    return run_on_a_server(SIMULATE, environment, *arguments, environment=simulated_gpu(values=True), cwd=cwd)


def result_of(*arguments: str, fresh: bool = False) -> dict[str, Any]:
    ran = simulate('--json', *arguments, fresh=fresh)
    assert ran.stdout, ran.stderr
    return {**as_promised('simulate', ran.stdout), 'stderr': ran.stderr, 'code': ran.returncode}
