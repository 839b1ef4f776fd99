"""The list of configurations, and how one of them is simulated and counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.breadth.rows import ROOMS, ROWS
from tests.breadth.run import counted, simulated, trained
from tests.conftest import simulated_gpu

pytestmark = pytest.mark.slow


def test_at_least_sixty_configurations_say_where_they_and_their_data_are_from() -> None:
    assert len(ROWS) == sum(len(list(room.rows())) for room in ROOMS) >= 60, 'each has its own name'
    assert all(row.source and 'random' in row.data for row in ROWS.values())


def test_a_configuration_is_simulated_and_counted_apart(tmp_path: Path) -> None:
    simulated_gpu()  # skips where there is none
    name = 'examples mnist'
    seen = simulated(name, tmp_path / 'recording')
    assert next(trained([name])) == seen, 'a fork of a process that has imported all comes to the same'
    assert (seen.failure, seen.steps) == ('', 3)
    assert seen.allocated == pytest.approx(next(counted([name]))['bytes'], rel=0.05)


def test_what_does_not_run_says_why(tmp_path: Path) -> None:
    simulated_gpu()
    seen = simulated('no such', tmp_path / 'recording')
    assert "KeyError: 'no such'" in seen.failure


ALLOCATED = """
import sys, torch
from torch.profiler import profile
from tests.breadth.row import train
from tests.breadth.rows import ROWS

with profile(profile_memory=True) as profiler:
    train(ROWS[sys.argv[1]].make(), 3)
found, left = [], list(profiler.profiler.kineto_results.experimental_event_tree())
while left:
    event = left.pop()
    left += event.children
    if event.name == '[memory]':
        size = event.typed[1].alloc_size
        found.append((event.start_time_ns, -(-abs(size) // 512) * 512 * (1 if size > 0 else -1)))
held = peak = 0
for _, size in sorted(found, key=lambda each: each[0]):
    held += size
    peak = max(peak, held)
print(peak)
"""


def test_gradients_are_counted_as_a_plain_run_on_the_host_adds_them() -> None:
    simulated_gpu()
    name = 'examples actor critic'
    ran = subprocess.run([sys.executable, '-c', ALLOCATED, name], capture_output=True, text=True, check=True)
    assert next(counted([name]))['bytes'] == pytest.approx(int(ran.stdout.splitlines()[-1]), rel=0.01)


@pytest.mark.parametrize('name', ['examples vae', 'examples word LSTM', 'examples word GRU'])
def test_what_an_operator_allocates_within_itself_is_counted_where_it_makes_the_peak(name: str, tmp_path: Path) -> None:
    simulated_gpu()
    assert simulated(name, tmp_path / 'recording').allocated == pytest.approx(next(counted([name]))['bytes'], rel=0.05)


def test_a_configuration_for_which_transformers_has_two_classes_runs(tmp_path: Path) -> None:
    pytest.importorskip('transformers')
    simulated_gpu()
    assert simulated('transformers deit', tmp_path / 'recording').failure == ''
