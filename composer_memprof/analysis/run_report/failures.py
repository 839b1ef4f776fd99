"""Which rank failed first. The failure of one rank ends the others: by a lost connection, a timeout, or the launcher."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Optional

from composer_memprof.analysis.memory.summary import OutOfMemorySummary, SnapshotSummary
from composer_memprof.analysis.run_report.attempts import RunAttempt
from composer_memprof.vocabulary import IN_COLLECTIVE

#: ``own``: the rank failed by itself. ``connection``: it lost, or waited in vain for, another rank. ``stopped``: from
#: outside, by a signal or by ``sys.exit``.
Origin = Literal['own', 'connection', 'stopped']
_ORDER: tuple[Origin, ...] = ('own', 'connection', 'stopped')
_STOPPED = re.compile(r'SystemExit|KeyboardInterrupt|HangUp|SIG[A-Z]+$|a signal, or an error that was caught')
#: What torch's process groups and stores say when another rank is gone.
_CONNECTION = re.compile(
    r'Dist(Backend|Network|Store)Error|Connection\w*Error|BrokenPipeError|TimeoutError'
    r'|connection (closed|reset|refused|was)|timed? ?out|\bNCCL\b|\bgloo\b|broken pipe|socket|watchdog',
    re.IGNORECASE,
)
_TIMEOUT = re.compile(r'timed? ?out|watchdog', re.IGNORECASE)
_NEVER = '~'  # after every time


@dataclass(frozen=True)
class Failure:
    """A rank that failed.

    Args:
        rank (int): the rank.
        batch (int, optional): at which; None if it is not known.
        phase (str): in which; ``''`` if it is not known.
        error (str): the error, or ``''``.
        oom (OutOfMemorySummary, optional): the allocation that failed, if one did.
        line (str, optional): of the user's code that raised the error.
        time (str, optional): UTC, in ISO 8601.
    """

    rank: int
    batch: Optional[int]
    phase: str
    error: str
    oom: Optional[OutOfMemorySummary]
    line: Optional[str] = None
    time: Optional[str] = None

    @property
    def origin(self) -> Origin:
        if self.oom is not None:
            return 'own'
        if _STOPPED.match(self.error):
            return 'stopped'
        return 'connection' if _CONNECTION.search(self.error) else 'own'


def waited(failures: Sequence[Failure]) -> list[Failure]:
    """The ranks that lost, or waited in vain for, another one."""
    return [each for each in failures if each.origin == 'connection']


def never_came(failures: Sequence[Failure]) -> list[Failure]:
    """The ranks that were stopped after others had waited for them in vain."""
    first = next(iter(waited(failures)), None)
    if first is None or not _TIMEOUT.search(first.error):
        return []
    return [each for each in failures if each.origin == 'stopped' and (each.time or '') > (first.time or '')]


def out_of_step(failures: Sequence[Failure]) -> Optional[Failure]:
    """The rank that waited in a collective call of the user's code which not all ranks made; None if that is not known."""
    lost = waited(failures)
    if any(each.origin == 'own' for each in failures) or len({each.line for each in lost}) < 2:
        return None
    return in_collective(lost)


def line_and_call(failure: Optional[Failure]) -> tuple[str, str]:
    """Where a rank failed, and the name of the collective call that the line makes; ``''`` for what is not known."""
    line, _, call = ((failure.line if failure is not None else None) or '').partition(IN_COLLECTIVE)
    return line, call


def in_collective(failures: Sequence[Failure]) -> Optional[Failure]:
    """The first that lost the connection in a collective call of the user's code; None if none did."""
    return next((each for each in waited(failures) if IN_COLLECTIVE in (each.line or '')), None)


def failures(summaries: dict[int, tuple[int, SnapshotSummary]], last: Optional[RunAttempt]) -> list[Failure]:
    """The failures of a run's last attempt. First those that ranks have by themselves, in the order of time.

    Args:
        summaries (dict): by rank, the batch and the summary of its snapshot.
        last (RunAttempt, optional): the attempt; None if the manifests list none.
    """
    found = {
        rank: _of_summary(rank, batch, summary) for rank, (batch, summary) in summaries.items() if _failed(summary)
    }
    if last is not None:
        for rank, attempt in last.ranks.items():
            if attempt.error is None:
                found.pop(rank, None)  # of an earlier attempt
            elif attempt.end != 'finished' or rank in found:
                known = found.get(rank, Failure(rank, attempt.batch, '', attempt.error, None))
                found[rank] = _placed(known, attempt.line, attempt.failed)
    with_times = all(failure.time is not None for failure in found.values())
    return sorted(found.values(), key=lambda each: _order(each, with_times))


def _order(failure: Failure, with_times: bool) -> tuple[object, ...]:
    time = failure.time or _NEVER if with_times else ''
    batch = float('inf') if failure.batch is None else failure.batch
    return (_ORDER.index(failure.origin), time, failure.oom is None, batch, failure.rank)


def _placed(failure: Failure, line: Optional[str], time: Optional[str]) -> Failure:
    return Failure(failure.rank, failure.batch, failure.phase, failure.error, failure.oom, line, time)


def _failed(summary: SnapshotSummary) -> bool:
    return bool(summary.error) or summary.oom is not None


def _of_summary(rank: int, batch: int, summary: SnapshotSummary) -> Failure:
    oom = summary.oom
    at = next((device.at_failure for device in summary.devices if device.at_failure is not None), None)
    phase = oom.phase if oom is not None and oom.phase else at.phase if at is not None else ''
    where = oom.batch if oom is not None and oom.batch is not None else at.batch if at is not None else batch
    return Failure(rank, where, phase, summary.error, oom)
