"""The figures of benchmarks, and the README's table of them.

Each row of the table is found by the words that it begins with. A figure that is off by more than a tenth, either way,
is a failure: the callbacks cost more than the README says, or the README is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Optional

#: How far a figure may be from the README's, as a share of the README's.
TOLERANCE = 0.1
#: Half of the last digit that the README gives: 0.03 stands for anything from 0.025 to 0.035.
ROUNDING = 0.005


@dataclass(frozen=True)
class Figure:
    """What a benchmark measured.

    Args:
        name (str): what is compared with what.
        ratio (float): the figure.
        goal (float, optional): what it may be at most.
    """

    name: str
    ratio: float
    goal: Optional[float] = None

    def __str__(self) -> str:
        if self.goal is None:
            return f'{self.name}: {self.ratio:.3f} (no goal)'
        return (
            f'{self.name}: {self.ratio:.3f} (goal {self.goal:g}, {"reached" if self.ratio <= self.goal else "missed"})'
        )


class Report:
    """Prints each figure when a benchmark calls it, and keeps the figure."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}

    def __call__(self, name: str, ratio: float, goal: Optional[float] = None) -> None:
        self.figures[name] = figure = Figure(name, ratio, goal)
        print(figure, flush=True)


@dataclass(frozen=True)
class Row:
    """A row of the README's table.

    Args:
        begins (str): the words that it begins with.
        benchmark (str): the one that measures it.
        figures (tuple[str, ...]): their names, in the order of the row.
    """

    begins: str
    benchmark: str
    figures: tuple[str, ...]


ROWS = (
    Row('a batch with three of our callbacks', 'idle', ('idle, our three against three empty ones, a batch',)),
    Row(
        'a step with `TorchProfiler` recording',
        'profiling',
        ('TorchProfiler active against bare torch.profiler, a step',),
    ),
    Row(
        'a step with `HostRSS`',
        'sampling',
        ('HostRSS at 2 Hz against none, a step', 'HostRSS at 10 Hz against none, a step'),
    ),
    Row('a step of 18.4 ms with `StepTimes`', 'step_times', ('StepTimes against none, a step',)),
    Row('a step on two cores, all busy', 'child', ('a step while a child writes against one without',)),
    Row(
        'a step while files are uploaded to S3',
        'uploads_meanwhile',
        (
            'a step while files are uploaded at full speed against one without',
            'a step while files are uploaded at 50 MB/s against one without',
        ),
    ),
    Row(
        "training held at the end of a snapshot's window",
        'hold',
        ("MemorySnapshot's hold after the profiler's stop against doing it inline",),
    ),
    Row('the same on a GPU', 'hold_gpu', ("MemorySnapshot's hold on a GPU against Composer's",)),
    Row(
        'a step with `MemorySnapshot(on_oom=True)`',
        'stand_by',
        ('MemorySnapshot(on_oom=True) on a CPU, outside of windows, against none, a step',),
    ),
)


@dataclass(frozen=True)
class Claim:
    """What the README says of one figure."""

    ratio: float
    goal: Optional[float]


def rows_of(readme: str) -> dict[str, list[str]]:
    """The cells after the first of each row of the table, by the first."""
    table = re.search(r'^\| \| ratio \| goal \|\n\|[-|]+\|\n((?:\|.*\n)+)', readme, re.MULTILINE)
    if table is None:
        raise ValueError('the README has no table with the heads ratio and goal')
    cells = ([cell.strip() for cell in line.strip('|').split('|')] for line in table[1].splitlines())
    return {first: rest for first, *rest in cells}


def claims(readme: str, rows: Iterable[Row] = ROWS) -> dict[str, Claim]:
    """What the README says, by the name of the figure.

    Raises:
        ValueError: if a row of the README has no benchmark, or a benchmark's row is not in the README.
    """
    left, found = rows_of(readme), {}
    for row in rows:
        texts = [text for text in left if text.startswith(row.begins)]
        if len(texts) != 1:
            raise ValueError(f'{len(texts)} rows of the README begin with {row.begins!r}')
        ratios, goal = left.pop(texts[0])
        for name, ratio in zip(row.figures, ratios.split(', '), strict=True):
            found[name] = Claim(float(ratio), float(goal) if goal else None)
    if left:
        raise ValueError(f'no benchmark measures {", ".join(left)}')
    return found


def compare(claimed: dict[str, Claim], figures: dict[str, Figure]) -> Iterator[tuple[bool, str]]:
    """Whether each figure is as the README says, with a sentence about it. One that was not measured is not as it says."""
    for name, claim in claimed.items():
        if name not in figures:
            yield False, f'{name}: not measured'
            continue
        ratio = figures[name].ratio
        says = f'{name}: {ratio:.3f}, the README says {claim.ratio:g}'
        # The share is taken of the rounded figure's edges: of 0.03 a tenth is less than its last digit.
        if ratio > (claim.ratio + ROUNDING) * (1 + TOLERANCE):
            yield False, f'{says}: slower; mend it, or change that figure in the README'
        elif ratio < (claim.ratio - ROUNDING) * (1 - TOLERANCE):
            yield False, f'{says}: faster; change that figure in the README'
        elif claim.goal is not None and claim.ratio <= claim.goal < ratio - ROUNDING:
            yield False, f'{says}, and that the goal {claim.goal:g} is reached: missed'
        else:
            yield True, f'{says}: as it says'
