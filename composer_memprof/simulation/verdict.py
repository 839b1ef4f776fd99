"""What a simulation can say: it fits, with much or little to spare, for a while or not, or too little was seen to tell."""

from __future__ import annotations

from importlib import metadata
from typing import Optional

FITS = 'fits'
TIGHT = 'fits with less than 5 % to spare'
#: Memory grows with each step, so that it depends on their number.
FOR_SOME_STEPS = 'fits for some steps'
DOES_NOT_FIT = 'does not fit'
NOT_SEEN = 'not seen'
#: The exit code of each.
EXIT_CODES = {FITS: 0, TIGHT: 0, FOR_SOME_STEPS: 2, NOT_SEEN: 2, DOES_NOT_FIT: 3}
#: Real trainings have reserved up to 4 % more than the simulated ones: torchtitan's published 82.4, 77.0 and 67.0 GiB of
#: Llama 3.1 8B (benchmarks/llama3_h100_202412_torchtitan.md), where 79.1, 75.4 and 64.9 GiB are simulated, the first of
#: them alike on torch 2.6.0 and 2.7.0. Why is not known.
_TO_SPARE = 0.05


def verdict_of(reserved: int, available: int) -> str:
    """The verdict on a run that memory sufficed for.

    >>> verdict_of(380, 389), verdict_of(300, 389)
    ('fits with less than 5 % to spare', 'fits')
    """
    return TIGHT if reserved > (1 - _TO_SPARE) * available else FITS


def fits(verdict: str) -> Optional[bool]:
    """True, False, or None where nothing was seen, or the number of steps decides.

    >>> fits(TIGHT), fits(DOES_NOT_FIT), fits(NOT_SEEN)
    (True, False, None)
    """
    return None if verdict in (NOT_SEEN, FOR_SOME_STEPS) else verdict != DOES_NOT_FIT


def torch_version() -> str:
    """The version of torch that is simulated."""
    return metadata.version('torch')


def margin(torch: str) -> str:
    """How far the figures of a real training may differ, in a sentence."""
    return f'torch {torch} was simulated; real trainings have reserved up to 4 % more'
