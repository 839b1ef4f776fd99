"""How far a search is, in one line of a terminal."""

from __future__ import annotations

from typing import Optional

from composer_memprof.plans.fastest.result import Attempt
from composer_memprof.simulation.step_time import speed_in_words

_WIDTH = 20


def progress_line(decided: float, trials: int, name: str, best: Optional[Attempt]) -> str:
    """A bar, what is tried, and the best so far.

    Args:
        decided: the part of all configs that is decided.
        trials: how many have ended.

    >>> progress_line(0.5, 3, 'microbatch 4', None)
    '[##########..........] trial 4: microbatch 4; none fits so far'
    """
    done = round(_WIDTH * decided)
    so_far = 'none fits so far'
    if best is not None and best.time is not None:
        so_far = f'best so far: {speed_in_words(best.time)} with {best.name}'
    return f'[{"#" * done}{"." * (_WIDTH - done)}] trial {trials + 1}: {name}; {so_far}'
