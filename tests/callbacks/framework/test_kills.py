"""Runs with all callbacks and DataLoader workers that are ended at random moments. ``make bench ARGS=kills`` ends 300."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.conftest import child_environment

pytestmark = pytest.mark.slow


def test_runs_that_are_ended_at_random_moments_leave_nothing_torn_false_or_unknown() -> None:
    environment = child_environment(KILLS=os.environ.get('KILLS', '3'), KILLS_SEED=str(time.time_ns()))
    command = [sys.executable, '-m', 'tests.benchmarks.artifacts.kills', 'kill -9', 'worker']
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
