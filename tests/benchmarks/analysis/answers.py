"""Whether reports are right: made-up problems with one known cause each, and healthy runs.

``make bench ARGS=answers`` trains all of ``tests/problems``, reads the first sentence and the first change of each
report, and prints a line for each. It takes some three minutes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from tests.problems.battery import HEALTHY, PROBLEMS, false_alarm, what_is_wrong_with_the_answer


def answers() -> None:
    """Print the table. Ends with 1 if an answer is wrong, or a healthy run has an alarm."""
    right = [
        _shown(name, lambda problem=problem: what_is_wrong_with_the_answer(problem))
        for name, problem in PROBLEMS.items()
    ]
    quiet = [_shown(name, lambda run=run: false_alarm(run)) for name, run in HEALTHY.items()]
    print(f'{sum(right)} of {len(right)} problems named in the first sentence, with the right change first')
    print(f'{len(quiet) - sum(quiet)} false alarms in {len(quiet)} healthy runs')
    if not all([*right, *quiet]):
        sys.exit(1)


def _shown(name: str, look: Callable[[], str]) -> bool:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        os.chdir(folder)
        try:
            wrong = look()
        finally:
            os.chdir(before)
    print(f'{"wrong" if wrong else "right"}  {name}{f": {wrong}" if wrong else ""}', flush=True)
    return not wrong
