"""Attempts: the processes that have recorded a rank of a run, one after the other, and how each of them ended.

A manifest has a line for an attempt when it begins, when ``fit`` fails, and when it ends. The last line counts. A process
that was killed writes no last line: the next attempt writes it. The line has the keys of every line of a manifest, with the
kind ``attempt`` and the status ``removed``, so that a reader that knows no attempts sees a file that is not there.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Optional, get_args

import psutil

from composer_memprof.artifacts.reading.regular_files import open_regular

End = Literal['finished', 'failed', 'stopped', 'killed']
_ENDS = frozenset(get_args(End))
#: The kind of a line of an attempt.
ATTEMPT = 'attempt'
_BEGINNING = f'{{"kind": "{ATTEMPT}"'.encode()
#: No text of a line is longer.
_LONGEST = 2000
_LARGEST = 2**63 - 1
#: Seconds by which the clock of a process's start may differ.
_CLOCK_S = 2.0


@dataclass(frozen=True)
class Attempt:
    """A process that records a rank of a run. Times are UTC, in ISO 8601.

    Args:
        id (str): the same in every manifest that the process writes.
        rank (int): that it records.
        host (str): on which it runs.
        process (int): its process id.
        began (str): when its first line was written.
        ended (str, optional): when its last line was written; None if that is not known.
        end (str, optional): ``finished``, ``failed`` (an exception ended ``fit``), ``stopped`` (by a signal, or by
            ``sys.exit``), ``killed`` (it wrote no last line). None while it runs.
        failed (str, optional): when ``fit`` failed.
        error (str, optional): type and text of the exception, or the name of the signal.
        line (str, optional): of the user's code that raised it: ``train.py:27 in forward``.
        batch (int, optional): the number of batches before it.
    """

    id: str
    rank: int
    host: str
    process: int
    began: str
    ended: Optional[str] = None
    end: Optional[End] = None
    failed: Optional[str] = None
    error: Optional[str] = None
    line: Optional[str] = None
    batch: Optional[int] = None

    def as_line(self) -> str:
        """The line of the manifest."""
        line = {
            'kind': ATTEMPT,
            'path': f'.{ATTEMPT}.{self.id}',
            'remote': None,
            'bytes': None,
            'sha256': None,
            'rank': self.rank,
            'run_name': '',
            'epoch': 0,
            'batch': self.batch or 0,
            'status': 'removed',
            ATTEMPT: {name: value for name, value in asdict(self).items() if value is not None},
        }
        return json.dumps(line) + '\n'

    @property
    def is_of_this_host(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def is_own(self) -> bool:
        """True if it is that of this process."""
        return self.id == _own.get(os.getpid(), ('', ''))[0]

    def is_running_here(self) -> bool:
        """True if it has not ended, and its process runs on this machine."""
        if self.end is not None or not self.is_of_this_host:
            return False
        try:
            process = psutil.Process(self.process)
            is_zombie = process.status() == psutil.STATUS_ZOMBIE  # killed, and not waited for yet
            return not is_zombie and process.create_time() <= seconds_of(self.began) + _CLOCK_S
        except (psutil.Error, OSError, OverflowError):
            return False


#: By process id: the attempt's id, and when it began.
_own: dict[int, tuple[str, str]] = {}


def own_attempt(rank: int, *, is_new: bool = False) -> Attempt:
    """The attempt of this process; ``is_new``: another one begins, because a process may train several times."""
    pid = os.getpid()
    if is_new or pid not in _own:
        _own[pid] = (secrets.token_hex(4), now())
    identity, began = _own[pid]
    return Attempt(identity, rank, socket.gethostname(), pid, began)


def now() -> str:
    """The time, as an attempt has it."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='milliseconds')


def seconds_of(time: str) -> float:
    """Seconds since 1970 of a time that an attempt has."""
    return datetime.datetime.fromisoformat(time).timestamp()


def read_attempts(manifest: Path) -> list[Attempt]:
    """The attempts that a manifest lists, in the order in which they began. Trusts nothing in the file.

    Raises:
        OSError: if it can't be read or is no regular file.
    """
    with open_regular(manifest) as file:
        return attempts_in(line for line in file if line.startswith(_BEGINNING))


def attempts_in(lines: Iterable[bytes]) -> list[Attempt]:
    """The attempts in lines of a manifest; lines that are no attempts are skipped."""
    found: dict[str, Attempt] = {}
    for line in lines:
        attempt = _parse(line)
        if attempt is not None:
            found[attempt.id] = attempt
    return sorted(found.values(), key=lambda attempt: attempt.began)


def _parse(line: bytes) -> Optional[Attempt]:
    try:
        record: Any = json.loads(line)[ATTEMPT]
        attempt = Attempt(**{field.name: record.get(field.name) for field in fields(Attempt)})
        for time in (attempt.began, attempt.ended, attempt.failed):
            if time is not None:
                seconds_of(time)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None
    return attempt if _is_sound(attempt) else None


def _is_sound(attempt: Attempt) -> bool:
    texts = [attempt.id, attempt.host, attempt.began]
    texts += [text for text in (attempt.ended, attempt.failed, attempt.error, attempt.line) if text is not None]
    numbers = [attempt.rank, attempt.process, *([] if attempt.batch is None else [attempt.batch])]
    return (
        all(type(text) is str and len(text) <= _LONGEST for text in texts)
        and all(type(number) is int and 0 <= number <= _LARGEST for number in numbers)
        and (attempt.end is None or (type(attempt.end) is str and attempt.end in _ENDS))
    )
