"""What a budget measures, and the limits that it sets: ``30 GiB``, ``80 ms``, or ``1 %`` above the recorded figure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Optional

from composer_memprof.messages import human_bytes, must_be
from composer_memprof.simulation.step_time import seconds_in_words

_LIMIT = re.compile(r'(\d{1,15}(?:\.\d{1,9})?)\s*(%|[A-Za-z]{1,3})')
_BYTES = {
    f'{prefix}{i}B': (1024 if i else 1000) ** power for power, prefix in enumerate(' KMGT') if power for i in ('', 'i')
}


@dataclass(frozen=True)
class Measure:
    """One figure of a run.

    Args:
        key (str): in files, and of the field of :class:`~composer_memprof.budget.figures.Figures`.
        label (str): in tables.
        units (Mapping): of an absolute limit; how many of the figure's own units each is.
        example (str): an absolute limit.
        usual (str): the limit of a run that is new to the budget.
        of_memory (bool): whether it is of memory, which each run has. A step's time is not always known.
        show (Callable): the figure for people.
    """

    key: str
    label: str
    units: Mapping[str, float]
    example: str
    usual: str
    of_memory: bool
    show: Callable[[float], str]


#: A further measure takes a line here, and a field of ``Figures``.
MEASURES = (
    Measure('allocated', 'allocated', _BYTES, '30 GiB', '1 %', True, human_bytes),
    Measure('reserved', 'reserved', _BYTES, '30 GiB', '5 %', True, human_bytes),
    Measure('step_seconds', 'step', {'us': 1e-6, 'ms': 1e-3, 's': 1}, '80 ms', '10 %', False, seconds_in_words),
)


@dataclass(frozen=True)
class Limit:
    """The most that a figure may come to.

    Args:
        text (str): as the budget has it.
        most (float, optional): in the measure's own unit; None if the limit is relative.
        share (float): by which the figure may be above the recorded one, if ``most`` is None.
    """

    text: str
    most: Optional[float]
    share: float = 0.0

    @property
    def is_relative(self) -> bool:
        return self.most is None

    def allowed(self, recorded: Optional[float]) -> Optional[float]:
        """The largest figure within the limit; None if it is relative and nothing is recorded."""
        if self.most is not None:
            return self.most
        return None if recorded is None else recorded * (1 + self.share)


def limit_of(measure: Measure, name: str, value: object) -> Limit:
    """The limit that ``value`` says.

    >>> limit_of(MEASURES[0], 'allowed.allocated', '2 %').allowed(200), limit_of(MEASURES[0], 'x', '2KiB').most
    (204.0, 2048.0)

    Raises:
        ValueError: naming it and what is allowed.
    """
    found = _LIMIT.fullmatch(value.strip()) if isinstance(value, str) else None
    units = {unit.lower(): size for unit, size in measure.units.items()}
    if found is not None and found[2] == '%':
        return Limit(str(value), None, float(found[1]) / 100)
    if found is not None and found[2].lower() in units:
        return Limit(str(value), float(found[1]) * units[found[2].lower()])
    shape = f'a figure such as {measure.example}, or a share above the recorded figure such as {measure.usual}'
    raise must_be(name, shape, value)
