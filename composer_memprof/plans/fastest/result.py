"""What a search for the fastest config found."""

from __future__ import annotations

import dataclasses
from typing import Optional

from composer_memprof.simulation.step_time import StepTime


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One config that was tried.

    Attributes:
        name: what is chosen, in a few words.
        microbatch: samples of one rank in a microbatch.
        config: the settings, as YAML to paste into the config.
        in_code: what to change in the model's code, one line each.
        fits: whether the memory sufficed; None if it did not run.
        verdict: one of those in :mod:`composer_memprof.simulation.verdict`.
        error: why it did not run, or was not timed, in one line; ``''`` if it did and was.
        allocated: the most in blocks of torch's allocator, in bytes; where memory ran out, up to there.
        reserved: the most that it took from the device, in bytes; likewise.
        time: of a step; None if it does not fit.
        seconds: that the trial took.
    """

    name: str
    microbatch: int
    config: str
    in_code: list[str]
    fits: Optional[bool]
    verdict: str
    error: str
    allocated: int
    reserved: int
    time: Optional[StepTime]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Fastest:
    """The end of a search.

    Attributes:
        batch_samples: of one rank in a step, the same for all configs.
        candidates: how many configs there are. Those that were not tried cannot be the fastest, by the assumptions of
            :class:`composer_memprof.plans.fastest.search.Search`.
        tried: in the order in which they were tried.
        best: up to three of them that fit, the fastest first.
        seconds: that all trials took.
    """

    batch_samples: int
    candidates: int
    tried: list[Attempt]
    best: list[Attempt]
    seconds: float
