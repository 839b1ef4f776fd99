"""Messages for people: warnings, refusals of a setting, suggestions, sizes."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Sequence


class MemprofWarning(UserWarning):
    """A profiling callback has something to say, or steps aside; the training goes on."""


def warn(message: str) -> None:
    """Warn the person who runs the training. Callers see to it that it comes once.

    Never raises, not even where warnings are made errors: the training, or a background thread, is behind it.
    """
    try:
        # Explicitly, since the line of ours that it comes from would tell nobody anything.
        warnings.warn_explicit(f'composer_memprof: {message}', MemprofWarning, 'composer_memprof', 0)
    except Warning:
        sys.stderr.write(f'composer_memprof: {message}\n')


def must_be(name: str, allowed: str, value: object) -> ValueError:
    """The error for a setting that is not allowed: ``interval must be 0.001 to 86400 seconds, not 0``.

    >>> raise must_be('interval', '0.001 to 86400 seconds', 0)
    Traceback (most recent call last):
    ...
    ValueError: interval must be 0.001 to 86400 seconds, not 0
    """
    return ValueError(f'{name} must be {allowed}, not {value!r}')


def check_switches(**switches: object) -> None:
    """Refuse a switch that is neither true nor false.

    Raises:
        ValueError: naming it and its value.
    """
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise must_be(name, 'true or false', value)


def check_one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse a word that is not among those allowed.

    Raises:
        ValueError: naming the setting, its value and what is allowed.
    """
    if value not in allowed:
        raise ValueError(f'{name}={value!r} is unknown; {allowed_are(allowed, value)}')


_LONG_LIST = 20


def nearest(word: object, allowed: Sequence[str]) -> str:
    """``"; did you mean 'active'?"`` for ``'activ'``, or nothing where no allowed word is close."""
    close = difflib.get_close_matches(str(word), allowed, n=1)
    return f'; did you mean {close[0]!r}?' if close else ''


def allowed_are(allowed: Sequence[str], word: object) -> str:
    """``"allowed are ba, sp; did you mean 'ba'?"``. Of a long list with a close word in it, those alone that are close."""
    close = difflib.get_close_matches(str(word), allowed, n=5)
    if close and len(allowed) > _LONG_LIST:
        return f'closest of the {len(allowed)} allowed are {", ".join(close)}{nearest(word, allowed)}'
    return f'allowed are {", ".join(allowed)}{nearest(word, allowed)}'


def human_bytes(count: float) -> str:
    """``'1.5 GiB'`` of 1610612736."""
    size, unit = float(count), 'B'
    for unit in ('B', 'KiB', 'MiB', 'GiB', 'TiB'):
        if abs(size) < 1024 or unit == 'TiB':
            break
        size /= 1024
    return f'{size:.0f} {unit}' if unit == 'B' else f'{size:.1f} {unit}'
