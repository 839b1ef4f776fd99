"""Runs a script on several ranks over gloo, in processes that need not import torch and Composer first."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import child_environment
from tests.support.processes import warm_python


def run_on_ranks(script: Path, ranks: int = 2, timeout: float = 300) -> str:
    """Run ``script`` in its folder on each rank. As :func:`python_on_ranks`."""
    return python_on_ranks(script.name, folder=script.parent, ranks=ranks, timeout=timeout)


def python_on_ranks(*arguments: str, folder: Path, ranks: int = 2, timeout: float = 300) -> str:
    """Run Python with these arguments on each rank, with the variables that Composer's launcher sets.

    Tests of the launcher itself, and of how it ends ranks, start ``composer``.

    Returns:
        str: what rank 0 printed, on stderr too.
    """
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    outputs = [folder / f'output-of-rank-{rank}' for rank in range(ranks)]
    with contextlib.ExitStack() as ending:
        processes = []
        for rank, output in enumerate(outputs):
            variables = {
                'RANK': rank,
                'LOCAL_RANK': rank,
                'WORLD_SIZE': ranks,
                'LOCAL_WORLD_SIZE': ranks,
                'NODE_RANK': 0,
                'MASTER_ADDR': '127.0.0.1',
                'MASTER_PORT': port,
            }
            process = warm_python.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=child_environment(**{name: str(value) for name, value in variables.items()}),
                stdout=ending.enter_context(output.open('w')),
                stderr=subprocess.STDOUT,
            )
            processes.append(ending.enter_context(process))
            ending.callback(process.kill)
        deadline = time.monotonic() + timeout
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            assert time.monotonic() < deadline, f'not done in {timeout} s: {_said(outputs)}'
            time.sleep(0.05)
    assert not any(codes), f'{codes}: {_said(outputs)}'
    return outputs[0].read_text()


def _said(outputs: list[Path]) -> str:
    return '\n'.join(f'{output.name}: {output.read_text()[-3000:]}' for output in outputs)
