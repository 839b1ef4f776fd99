"""The list of configurations, and how one of them is simulated and counted."""

from __future__ import annotations

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
