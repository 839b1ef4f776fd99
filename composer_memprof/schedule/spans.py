"""Lengths of training time, in Composer's units."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Optional, Union

from composer.core import State, Time, TimeUnit

from composer_memprof.messages import must_be, nearest

UNITS = tuple(unit.value for unit in TimeUnit)
_WALL_CLOCK = re.compile(r'^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$')

TimeInput = Union[int, str, Time]


@dataclass(frozen=True)
class Span:
    """A length of training time: ``value`` in ``unit``, one of Composer's ``iter ep ba sp tok sec dur``."""

    value: float
    unit: str

    def __str__(self) -> str:
        return f'{self.value:g}{self.unit}'


def parse_span(value: TimeInput, name: str) -> Span:
    """Read ``'3ba'``, ``'10m'``, ``'1h30m'``, ``'0.1dur'``, a :class:`composer.core.Time`, or an int of batches.

    Raises:
        ValueError: naming ``name``, the value and what is allowed.
    """
    problem = (
        f'{name}={value!r} is not a length of training time; allowed are a number and one of {", ".join(UNITS)} '
        "(such as '3ba'), '10m' or '1h30m'"
    )
    if isinstance(value, Time):
        span = Span(value.value, value.unit.value)
    elif isinstance(value, int) and not isinstance(value, bool):
        span = Span(value, TimeUnit.BATCH.value)
    elif isinstance(value, str) and (clock := _WALL_CLOCK.match(value)) and any(clock.groups()):
        hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        span = Span(hours * 3600 + minutes * 60 + seconds, TimeUnit.SECOND.value)
    elif isinstance(value, str):
        try:
            time = Time.from_timestring(value)
        except (ValueError, TypeError, OverflowError) as error:
            unit = re.sub(r'^[\d.\s+-]+', '', value)
            suggestion = nearest(unit, UNITS) if unit not in UNITS else ''
            raise ValueError(problem + suggestion) from error
        span = Span(time.value, time.unit.value)
    else:
        raise ValueError(problem)
    if span.value < 0 or not math.isfinite(span.value):
        raise must_be(name, 'finite and not negative', value)
    return span


def resolve_duration(span: Span, state: Optional[State]) -> Span:
    """``span`` without ``dur``, the fraction of training.

    The result is in batches if the length of an epoch is known, otherwise in the unit of ``max_duration``.

    Raises:
        ValueError: if ``span`` is in ``dur`` and ``state`` has no ``max_duration``.
    """
    if span.unit != 'dur':
        return span
    total = None if state is None else state.max_duration
    if total is None:
        raise ValueError(f'{span} is a fraction of the training, but max_duration is not set')
    length = state.dataloader_len if state is not None else None
    if total.unit == TimeUnit.EPOCH and length is not None:
        return Span(math.ceil(_without_rounding_error(span.value * total.value * int(length))), 'ba')
    return Span(_without_rounding_error(span.value * total.value), total.unit.value)


def _without_rounding_error(product: float) -> float:
    """Round, because 0.07 * 100 is 7.000000000000001 in floating point."""
    return round(product, 6)
