"""Messages for people: warnings, the package's logger, errors for a setting, suggestions, sizes. None has a credential."""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Union

from composer_memprof.redaction import redacted

logger = logging.getLogger('composer_memprof')
# Otherwise logging prints a warning on stderr a second time where nobody has configured it.
logger.addHandler(logging.NullHandler())

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


# A handler may need a lock that a thread of the parent held during the fork, so a forked child writes no logs.
if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_after_fork)


class MemprofWarning(UserWarning):
    """A warning of a profiling callback. Training continues."""


class MemprofError(Exception):
    """What was asked for in Python can't be done. The message is the line that the command prints.

    >>> from composer_memprof import MemprofError, plan
    >>> try:
    ...     plan('quickstart', gpu='h10')
    ... except MemprofError as error:
    ...     print(str(error)[:28])
    there is no GPU named 'h10';
    """


def warn(message: str) -> None:
    """Warn the person who runs the training, and log the same at WARNING. Callers warn once.

    Never raises, not even where warnings are errors: it is called within the training and on background threads.
    """
    message = redacted(message)
    _log(logging.WARNING, message)
    try:
        # warn_explicit, because the line of this package that warns would tell the reader nothing.
        warnings.warn_explicit(f'composer_memprof: {message}', MemprofWarning, 'composer_memprof', 0)
    except Warning:
        sys.stderr.write(f'composer_memprof: {message}\n')


def log_error(message: str, error: Union[BaseException, str, None] = None) -> None:
    """Log ``message`` at DEBUG with the traceback of ``error``, or of the error being handled. Never raises.

    ``error`` may be the text of a traceback, which came from a child process.

    >>> try:
    ...     1 / 0
    ... except ZeroDivisionError:
    ...     log_error('HostRSS could not read the memory of a worker')
    """
    if not logger.isEnabledFor(logging.DEBUG):
        return
    if not isinstance(error, str):
        error = sys.exc_info()[1] if error is None else error
        text = ''.join(traceback.format_exception(error)) if error is not None else ''
        if redacted(text) == text:
            _log(logging.DEBUG, redacted(message), exc_info=error)
            return
        error = text
    _log(logging.DEBUG, redacted(f'{message}\n{error}'))


@contextlib.contextmanager
def errors_logged(message: str) -> Iterator[None]:
    """Go on after the block if it raises; ``message`` and the traceback are logged at DEBUG."""
    try:
        yield
    except Exception:
        log_error(message)


def _log(level: int, message: str, **more: Any) -> None:
    if _forked:
        return
    try:
        logger.log(level, '%s', message, **more)
    except Exception:  # raised by a handler of the user's
        pass


def push_command(folders: Iterable[object]) -> str:
    """What uploads the files in ``folders``.

    >>> push_command(['my run/memprof'])
    "composer-memprof push 'my run/memprof'"
    """
    return ' '.join(['composer-memprof push', *sorted({shlex.quote(str(folder)) for folder in folders})])


def must_be(name: str, allowed: str, value: object) -> ValueError:
    """The error for a setting that is not allowed: ``interval must be 0.001 to 86400 seconds, not 0``.

    >>> raise must_be('interval', '0.001 to 86400 seconds', 0)
    Traceback (most recent call last):
    ...
    ValueError: interval must be 0.001 to 86400 seconds, not 0
    """
    return ValueError(f'{name} must be {allowed}, not {redacted(repr(value))}')


def check_switches(**switches: object) -> None:
    """Refuse a setting that is neither true nor false.

    Raises:
        ValueError: naming it and its value.
    """
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise must_be(name, 'true or false', value)


def check_count(name: str, value: object) -> None:
    """Refuse what is not a whole number from 1.

    Raises:
        ValueError: naming the setting and its value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise must_be(name, 'a whole number from 1', value)


def check_one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse a value that is not in ``allowed``.

    Raises:
        ValueError: naming the setting, its value and what is allowed.
    """
    if value not in allowed:
        raise ValueError(f'{name}={value!r} is unknown; {allowed_are(allowed, value)}')


_LONG_LIST = 20


def nearest(word: object, allowed: Sequence[str]) -> str:
    """``"; did you mean 'active'?"`` for ``'activ'``; ``''`` if no allowed word is close."""
    close = difflib.get_close_matches(str(word), allowed, n=1)
    return f'; did you mean {close[0]!r}?' if close else ''


def allowed_are(allowed: Sequence[str], word: object) -> str:
    """``"allowed are ba, sp; did you mean 'ba'?"``. A long list is shortened to the closest words, if there are any."""
    close = difflib.get_close_matches(str(word), allowed, n=5)
    if close and len(allowed) > _LONG_LIST:
        return f'closest of the {len(allowed)} allowed are {", ".join(close)}{nearest(word, allowed)}'
    return f'allowed are {", ".join(allowed)}{nearest(word, allowed)}'


def printable(text: str) -> str:
    """Control characters and lone surrogates replaced by ``?``: the text may end in a terminal or a page."""
    return text if text.isprintable() else ''.join(letter if letter.isprintable() else '?' for letter in text)


def human_bytes(count: float) -> str:
    """``'1.5 GiB'`` of 1610612736."""
    size, unit = float(count), 'B'
    for unit in ('B', 'KiB', 'MiB', 'GiB', 'TiB'):
        if abs(size) < 1024 or unit == 'TiB':
            break
        size /= 1024
    return f'{size:.0f} {unit}' if unit == 'B' else f'{size:.1f} {unit}'


def count_of(number: int, what: str) -> str:
    """``'1 segment'``, ``'2 segments'``."""
    return f'{number} {what}{"" if number == 1 else "s"}'
