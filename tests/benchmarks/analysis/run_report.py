"""What a report on 1,024 made-up ranks costs, from their summaries alone: ``make bench ARGS=run_report``."""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks.figures import Report
from tests.benchmarks.measured import measure
from tests.support.made_up_runs import run_of

_RANKS = 1024
#: The goals: seconds, GB of the command's memory, and MB of the page.
_SECONDS, _GB, _MB = 5.0, 1.0, 5.0


def run_report(rounds: int, report: Report) -> None:
    """Report each figure as a share of its goal, and the goal, which is 1."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(Path(folder) / 'run', _RANKS, rank700=2.0)
        seconds, peaks = zip(*(measure('report', str(run)) for _ in range(rounds)))
        size = os.path.getsize(run / 'report.html') / 1e6
    took, memory = statistics.median(seconds), max(peaks)
    report(f'report on {_RANKS:,} ranks: {took:.1f} s of {_SECONDS:.0f}', took / _SECONDS, 1.0)
    report(f'its memory: {memory:.2f} GB of {_GB:.0f}', memory / _GB, 1.0)
    report(f'its page: {size:.1f} MB of {_MB:.0f}', size / _MB, 1.0)
