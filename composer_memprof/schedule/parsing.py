"""Reads the settings that say when to record: schedules in any form, ranks, stages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from composer_memprof.messages import allowed_are, check_one_of, must_be
from composer_memprof.schedule.base import Schedule, ScheduleInput
from composer_memprof.schedule.function import FunctionSchedule
from composer_memprof.schedule.ranks import LocalRanks, parse_ranks
from composer_memprof.schedule.windows import window

STAGES = ('train', 'eval', 'predict')


@dataclass(frozen=True)
class ParsedSchedule:
    """A schedule, and the ranks and stages that a mapping may give with it; None if it does not."""

    schedule: Schedule
    ranks: Optional[frozenset[int]] = None
    stages: Optional[frozenset[str]] = None


def parse_schedule(value: ScheduleInput, name: str = 'schedule') -> ParsedSchedule:
    """Read ``{skip: 1ba, warmup: 1ba, active: 3ba, every: 500ba, repeat: 0, ranks: [0], local_ranks: [0], stages: [train]}``.

    Raises:
        ValueError: naming the key, the value and what is allowed.
    """
    if isinstance(value, Schedule):
        return ParsedSchedule(value)
    if isinstance(value, Mapping):
        return _parse_mapping(value, name)
    if callable(value) and _takes_a_state(value):
        return ParsedSchedule(FunctionSchedule(value))
    raise must_be(name, 'window(...), a mapping, or a function of the State', value)


def as_schedule(value: ScheduleInput) -> Schedule:
    """The schedule of :func:`parse_schedule`, without ranks and stages."""
    return parse_schedule(value).schedule


def _takes_a_state(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True


def _parse_mapping(mapping: Mapping[str, Any], name: str) -> ParsedSchedule:
    window_keys = tuple(inspect.signature(window).parameters)
    allowed = (*window_keys, 'ranks', 'local_ranks', 'stages')
    for key in mapping:
        if key not in allowed:
            raise ValueError(f'{name}.{key} is unknown; {allowed_are(allowed, key)}')
    given = {key: mapping[key] for key in window_keys if mapping.get(key) is not None}
    if 'active' not in given and 'every' not in given:
        raise ValueError(f'{name} needs active, the length of a window; allowed are {", ".join(allowed)}')
    try:
        schedule = window(**{'active': '1ba', **given})
    except ValueError as error:
        raise ValueError(f'{name}.{error}') from error
    ranks, local_ranks, stages = mapping.get('ranks'), mapping.get('local_ranks'), mapping.get('stages')
    if local_ranks is not None:
        schedule &= LocalRanks(parse_ranks(local_ranks, f'{name}.local_ranks'))
    return ParsedSchedule(
        schedule,
        None if ranks is None else parse_ranks(ranks, f'{name}.ranks'),
        None if stages is None else parse_stages(stages, f'{name}.stages'),
    )


def parse_stages(stages: Any, name: str) -> frozenset[str]:
    """Stages as a set.

    Raises:
        ValueError: if there are none, or one is not ``train``, ``eval`` or ``predict``.
    """
    if not stages or not isinstance(stages, (str, Sequence, set, frozenset)):
        raise must_be(name, f'one or more of {", ".join(STAGES)}', stages)
    values = [stages] if isinstance(stages, str) else list(stages)
    for stage in values:
        check_one_of(name, stage, STAGES)
    return frozenset(values)


def check_units(schedule: Schedule, stages: frozenset[str]) -> None:
    """Refuse ``dur``, the fraction of training, in a stage other than train, whose length is not known.

    Raises:
        ValueError: naming the length and the stage.
    """
    for span in schedule.spans():
        if span.unit == 'dur' and stages != {'train'}:
            others = ', '.join(sorted(stages - {'train'}))
            raise ValueError(
                f'schedule: {span} is a fraction of training and cannot measure {others}; use ba, sp or 10m'
            )
