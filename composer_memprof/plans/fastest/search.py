"""Branch and bound over microbatches and settings that save memory."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Optional


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A config that could be tried.

    Attributes:
        microbatch: samples.
        choices: the place of each setting's choice.
    """

    microbatch: int
    choices: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Tried:
    """What a trial of a candidate came to.

    Attributes:
        candidate: that was tried.
        too_large: memory ran out.
        rate: samples a second; None if memory ran out, or for another reason.
    """

    candidate: Candidate
    too_large: bool
    rate: Optional[float]


@dataclasses.dataclass(frozen=True)
class Dimension:
    """One setting, as the search sees it: how many choices it has, whether they are ordered, and their price.

    The fields are as in :class:`composer_memprof.plans.fastest.settings.Setting`.
    """

    count: int
    ordered: bool
    price: int


class Search:
    """Finds the fastest candidate that fits, in few trials.

    It assumes two things, which hold for a program that the GPU's kernels keep busy: a larger microbatch is never slower
    and never needs less memory, and a choice that saves memory never makes a step faster. Then the rate of one candidate
    bounds those of all others with as small a microbatch that save as much or more, and a candidate that does not fit
    rules out all with as large a microbatch that save no more. Candidates that these bounds decide are not tried.

    Args:
        microbatches: the sizes, ascending.
        run: makes a trial.
        report: called before each trial, with the candidate and the part of all candidates that is decided.

    >>> def run(one):
    ...     fits = one.microbatch <= (4, 8)[one.choices[0]]
    ...     rate = one.microbatch / (one.microbatch + 1) / (1, 1.3)[one.choices[0]]
    ...     return Tried(one, not fits, rate if fits else None)
    >>> found = Search([1, 2, 4, 8], [Dimension(2, True, 1)], run)
    >>> found.run()
    >>> [(each.candidate.microbatch, each.candidate.choices, each.too_large) for each in found.tried]
    [(8, (0,), True), (2, (0,), False), (4, (0,), False), (8, (1,), False)]
    >>> found.best(1)[0].candidate
    Candidate(microbatch=4, choices=(0,))
    """

    def __init__(
        self,
        microbatches: Sequence[int],
        dimensions: Sequence[Dimension],
        run: Callable[[Candidate], Tried],
        report: Callable[[Candidate, float], None] = lambda candidate, decided: None,
    ) -> None:
        self._sizes = list(microbatches)
        self._dimensions = dimensions
        self._run = run
        self._report = report
        self._combinations = sorted(
            itertools.product(*(range(each.count) for each in dimensions)),
            key=lambda choices: sum(each.price * choice for each, choice in zip(dimensions, choices, strict=True)),
        )
        self._hopeless: set[tuple[int, ...]] = set()
        self.tried: list[Tried] = []

    @property
    def candidates(self) -> int:
        """How many there are."""
        return len(self._sizes) * len(self._combinations)

    def best(self, most: int) -> list[Tried]:
        """The fastest of those that were tried and fit, the fastest first."""
        fitting = [each for each in self.tried if each.rate is not None]
        return sorted(fitting, key=lambda each: -(each.rate or 0))[:most]

    def run(self) -> None:
        """Search, the combinations that are expected to be the fastest first."""
        for choices in self._combinations:
            self._largest_worth_it(choices)

    def _largest_worth_it(self, choices: tuple[int, ...]) -> None:
        """Halve the range of microbatches that may fit and be faster than the best one so far."""
        low, high = 0, len(self._sizes)
        middle = high - 1  # often all of them fit
        while True:
            while low < high and self._is_bounded(Candidate(self._sizes[low], choices)):
                low += 1
            while low < high and self._is_too_large(Candidate(self._sizes[high - 1], choices)):
                high -= 1
            if low >= high:
                return
            candidate = Candidate(self._sizes[min(max(middle, low), high - 1)], choices)
            self._report(candidate, self._decided())
            found = self._run(candidate)
            self.tried.append(found)
            if not found.too_large and found.rate is None:  # it does not run, so that others would not either
                self._hopeless.add(choices)
                return
            middle = (low + high - 1) // 2 if found.too_large else (self._sizes.index(candidate.microbatch) + high) // 2

    def _is_bounded(self, candidate: Candidate) -> bool:
        """Whether it can't be faster than the best one so far."""
        bound = min(
            (each.rate for each in self.tried if each.rate is not None and self._is_at_most(candidate, each.candidate)),
            default=math.inf,
        )
        return bound <= max((each.rate or 0.0 for each in self.tried), default=0.0)

    def _is_too_large(self, candidate: Candidate) -> bool:
        return any(each.too_large and self._is_at_most(each.candidate, candidate) for each in self.tried)

    def _is_at_most(self, one: Candidate, other: Candidate) -> bool:
        """Whether one is as slow as the other, or slower, and needs as much memory, or less, by the assumptions."""
        if one.microbatch > other.microbatch:
            return False
        return all(
            mine >= others if each.ordered else mine == others
            for each, mine, others in zip(self._dimensions, one.choices, other.choices, strict=True)
        )

    def _decided(self) -> float:
        """The part of all candidates that were tried or need not be."""
        open_ones = sum(
            not (self._is_bounded(candidate) or self._is_too_large(candidate))
            for choices in self._combinations
            if choices not in self._hopeless
            for candidate in (Candidate(size, choices) for size in self._sizes)
        )
        return 1 - open_ones / self.candidates
