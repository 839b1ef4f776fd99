"""The attempts of a run: which processes recorded it, one set of ranks after the other, and how each ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Optional

from composer_memprof.artifacts.reading.attempts import Attempt, read_attempts
from composer_memprof.artifacts.reading.manifest import find_manifests
from composer_memprof.artifacts.reading.running import is_written

#: ``running``; or ``unknown``: on another machine, with whose locks nobody can tell.
State = Literal['finished', 'failed', 'stopped', 'killed', 'running', 'unknown']


@dataclass
class RunAttempt:
    """One attempt of all ranks.

    Args:
        ranks (dict[int, Attempt]): by rank.
        states (dict[int, State]): of each rank.
    """

    ranks: dict[int, Attempt] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)

    def ranks_in(self, state: State) -> list[int]:
        """The ranks that are in a state, ascending."""
        return sorted(rank for rank, found in self.states.items() if found == state)


def run_attempts(folders: Iterable[Path]) -> list[RunAttempt]:
    """The attempts that the manifests in ``folders``, at any depth, list: the first one first.

    Raises:
        OSError: if a manifest can't be read.
    """
    by_id: dict[tuple[str, int], Attempt] = {}
    manifests: dict[tuple[str, int], Path] = {}
    for manifest in dict.fromkeys(path for folder in folders for path in find_manifests(folder)):
        for attempt in read_attempts(manifest):
            key = (attempt.id, attempt.rank)
            by_id[key] = _merged(by_id.get(key, attempt), attempt)
            if attempt.end is None:
                manifests[key] = manifest
    found: list[RunAttempt] = []
    for attempt in sorted(by_id.values(), key=lambda attempt: attempt.began):
        if not found or _is_later(attempt, found[-1]):
            found.append(RunAttempt())
        found[-1].ranks[attempt.rank] = attempt
    for number, each in enumerate(found, 1):
        for rank, attempt in each.ranks.items():
            each.states[rank] = _state(attempt, manifests.get((attempt.id, rank)), is_last=number == len(found))
    return found


def _merged(one: Attempt, other: Attempt) -> Attempt:
    """Of two manifests of a process. One of them may have been closed, or written to, earlier."""
    latest = max(one, other, key=lambda attempt: (attempt.end is not None, attempt.ended or ''))
    failed = max(one, other, key=lambda attempt: attempt.failed or '')
    return replace(latest, failed=failed.failed, error=failed.error, line=failed.line, batch=failed.batch)


def _is_later(attempt: Attempt, before: RunAttempt) -> bool:
    """True if it began after its rank, or all ranks, of the attempt before."""
    return attempt.rank in before.ranks or all((each.ended or '~') < attempt.began for each in before.ranks.values())


def _state(attempt: Attempt, manifest: Optional[Path], *, is_last: bool) -> State:
    if attempt.end is not None:
        return attempt.end
    if attempt.is_running_here():
        return 'running'
    if not is_last or manifest is None:
        return 'killed'
    written = is_written(manifest)
    if written is None and not attempt.is_of_this_host:
        return 'unknown'
    return 'running' if written else 'killed'
