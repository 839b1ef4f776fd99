"""The README's table and the benchmarks belong together, and ``make bench CHECK=1`` fails when it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.figures import ROWS, Claim, Figure, claims, compare, rows_of

README = (Path(__file__).parents[2] / 'README.md').read_text()


def _verdicts(claim: Claim, ratio: float) -> tuple[bool, str]:
    ((is_right, sentence),) = compare({'it': claim}, {'it': Figure('it', ratio, claim.goal)})
    return is_right, sentence


def test_each_row_of_the_readme_has_a_benchmark_and_each_row_here_is_in_the_readme() -> None:
    assert len(rows_of(README)) == len(ROWS)
    assert set(claims(README)) == {name for row in ROWS for name in row.figures}


def test_each_row_names_a_benchmark_that_runs() -> None:
    from tests.benchmarks.run import BENCHMARKS

    assert {row.benchmark for row in ROWS} <= set(BENCHMARKS)


def test_a_row_without_a_benchmark_is_refused() -> None:
    with pytest.raises(ValueError, match='no benchmark measures a batch with three'):
        claims(README, ROWS[1:])


def test_a_benchmark_without_a_row_is_refused() -> None:
    without = README.replace('| a step with `TorchProfiler`', '| another step with `TorchProfiler`')
    with pytest.raises(ValueError, match='0 rows of the README begin with'):
        claims(without)


@pytest.mark.parametrize(
    ('claim', 'ratio', 'is_right', 'says'),
    [
        (Claim(1.11, 1.2), 1.12, True, 'as it says'),
        (Claim(1.11, 1.2), 1.27, False, 'slower'),
        (Claim(1.34, None), 1.1, False, 'faster; change that figure in the README'),
        (Claim(1.02, 1.02), 1.04, False, 'the goal 1.02 is reached: missed'),
        (Claim(1.02, 1.02), 1.024, True, 'as it says'),
        (Claim(1.3, 1.2), 1.3, True, 'as it says'),
        (Claim(0.03, 0.1), 0.034, True, 'as it says'),
        (Claim(0.03, 0.1), 0.045, False, 'slower'),
    ],
)
def test_a_figure_that_is_off_by_more_than_a_tenth_or_misses_its_goal_fails(
    claim: Claim, ratio: float, is_right: bool, says: str
) -> None:
    verdict, sentence = _verdicts(claim, ratio)
    assert verdict is is_right
    assert says in sentence


def test_a_figure_that_was_not_measured_fails() -> None:
    assert list(compare({'it': Claim(1.0, 1.0)}, {})) == [(False, 'it: not measured')]
