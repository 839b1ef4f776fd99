"""Sentences on how a run ended: which rank failed first, which were killed, and what became of earlier attempts."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from composer_memprof.analysis.memory.summary import OutOfMemorySummary
from composer_memprof.analysis.run import rank_list
from composer_memprof.analysis.run_report.attempts import RunAttempt, State
from composer_memprof.analysis.run_report.failures import (
    Failure,
    in_collective,
    line_and_call,
    never_came,
    out_of_step,
    waited,
)
from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.messages import human_bytes

#: Most files that a sentence names.
_LISTED = 8
#: Most attempts that are described, the newest ones.
_ATTEMPTS = 4
_ENDED: tuple[tuple[State, str], ...] = (
    ('finished', 'finished'),
    ('failed', 'failed'),
    ('stopped', 'stopped from outside'),
    ('killed', 'killed'),
    ('running', 'still running'),
    ('unknown', 'killed, or running on another machine'),
)


def failure_sentences(report: RunReport) -> Iterator[str]:
    """How the last attempt ended, if it did not end well: first the rank that ended the others."""
    last = report.attempts[-1] if report.attempts else None
    killed = last.ranks_in('killed') if last is not None else []
    if report.failures and report.failures[0].origin == 'own':
        yield _own_failure(report, killed)
    elif last is not None and killed:
        yield _killed(report, last, killed)
    elif (odd := out_of_step(report.failures)) is not None:
        yield _out_of_step(report, odd)
    elif never_came(report.failures):
        yield _hang(report)
    elif report.failures:
        yield _own_failure(report, killed)
    if last is not None and last.ranks_in('unknown'):
        ranks = last.ranks_in('unknown')
        yield f'{_ranks(ranks, report)} {_was(ranks)} killed, or runs on another machine: {_place(last, ranks)}.'
    if last is None and report.open_ranks and not report.goes_on:
        yield (
            f'{_whose_files(report)} were still open, and no process here writes them: the run was killed, or goes '
            'on elsewhere.'
        )


def _own_failure(report: RunReport, killed: Sequence[int]) -> str:
    first, *others = report.failures
    text = _failure(first, report.labels.get(first.rank, f'rank {first.rank}'))
    same = [each.rank for each in others if each.origin == first.origin]
    after = sorted({each.rank for each in others if each.origin != first.origin} | {*killed})
    if same:
        text += f' {_ranks(same, report)} failed too.'
    if after:
        text += f' {_ranks(after, report)} {_was(after)} stopped by that.'
    return text


def _killed(report: RunReport, last: RunAttempt, killed: Sequence[int]) -> str:
    text = (
        f'{_ranks(killed, report)} {_was(killed)} killed, or ended with os._exit: {_place(last, killed)} wrote no end.'
    )
    lost = waited(report.failures)
    if lost:
        line, call = line_and_call(in_collective(report.failures))
        where = f' in torch.distributed.{call}, called at {line}' if call else ''
        text += f' {_ranks([each.rank for each in lost], report)} then lost the connection{where}: {lost[0].error}.'
    stopped = [each.rank for each in report.failures if each.origin == 'stopped']
    return text + (f' {_ranks(stopped, report)} {_was(stopped)} stopped by that.' if stopped else '')


def _hang(report: RunReport) -> str:
    late, others = never_came(report.failures), waited(report.failures)
    who, whom = (_ranks([each.rank for each in ranks], report) for ranks in (late, others))
    at = f' in batch {late[0].batch}' if late[0].batch is not None else ''
    place = f', at {late[0].line}' if late[0].line else ''
    of_rank = f'rank {late[0].rank} was' if len(late) > 1 else 'it was'
    return (
        f'{who} did not come to what {_lower(whom)} waited for: {of_rank} still{at}{place}. '
        f'{_failure(others[0], f"rank {others[0].rank}")}'
    )


def _out_of_step(report: RunReport, odd: Failure) -> str:
    line, call = line_and_call(odd)
    same = [each.rank for each in waited(report.failures) if each.line == odd.line]
    others = [each for each in waited(report.failures) if each.line != odd.line]
    at = f' in batch {odd.batch}' if odd.batch is not None else ''
    return (
        f'{_ranks(same, report)} called torch.distributed.{call} at {line}{at}, and '
        f'{_lower(_ranks([each.rank for each in others], report))} did not: rank {others[0].rank} was at {others[0].line}. '
        f'Rank {odd.rank} waited, and failed with {odd.error}.'
    )


def _was(ranks: Sequence[int]) -> str:
    return 'was' if len(ranks) == 1 else 'were'


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def attempt_sentences(attempts: Sequence[RunAttempt]) -> list[str]:
    """What became of each attempt before the last one, the newest ones only; nothing if there was one attempt."""
    if len(attempts) < 2:
        return []
    shown = list(enumerate(attempts, 1))[:-1][-_ATTEMPTS:]
    return [f'This is attempt {len(attempts)}.', *(f'Attempt {number} {became(each)}.' for number, each in shown)]


def attempt_lines(attempts: Sequence[RunAttempt]) -> list[str]:
    """A line for each attempt: when it began, where, and how it ended."""
    return [
        f'attempt {number}: from {_when(min(each.began for each in attempt.ranks.values()))}, '
        f'{_place(attempt, sorted(attempt.ranks))}, {became(attempt)}'
        for number, attempt in list(enumerate(attempts, 1))[-_ATTEMPTS:]
    ]


def became(attempt: RunAttempt) -> str:
    """How an attempt ended, rank by rank if they differ: ``was killed``, ``rank 2 failed; … in batch 7 of rank 2: …``."""
    error = _error(attempt)
    states = [(found, what) for state, what in _ENDED if (found := attempt.ranks_in(state))]
    if len(states) == 1 and len(attempt.ranks) == 1:
        text = states[0][1]
        was = '' if text in ('finished', 'failed') else 'is ' if text.startswith('still') else 'was '
        return f'{was}{text}{error}'
    return '; '.join(f'{_of_all(ranks, attempt)} {what}' for ranks, what in states) + error


def _of_all(ranks: Sequence[int], attempt: RunAttempt) -> str:
    if len(ranks) == len(attempt.ranks):
        return 'all ranks'
    return f'{"rank" if len(ranks) == 1 else "ranks"} {rank_list(ranks)}'


def _error(attempt: RunAttempt) -> str:
    """The error of the rank that failed first, to append."""
    found = [
        Failure(rank, each.batch, '', each.error, None, each.line, each.failed)
        for rank, each in attempt.ranks.items()
        if each.error is not None and attempt.states[rank] in ('failed', 'stopped')
    ]
    if not found:
        return ''
    first = min(found, key=lambda each: (each.origin != 'own', each.origin == 'stopped', each.time or ''))
    of_rank = f' of rank {first.rank}' if len(attempt.ranks) > 1 else ''
    return f' in batch {first.batch}{of_rank}: {first.error}'


def _place(attempt: RunAttempt, ranks: Sequence[int]) -> str:
    """The process of one rank, or the hosts of several."""
    if len(ranks) == 1:
        return f'process {attempt.ranks[ranks[0]].process} on {attempt.ranks[ranks[0]].host}'
    hosts = sorted({attempt.ranks[rank].host for rank in ranks})
    return f'{len(ranks)} processes on {hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"}'


def _when(time: str) -> str:
    return datetime.datetime.fromisoformat(time).astimezone(datetime.timezone.utc).strftime('%Y-%m-%d %H:%M:%S UTC')


def _ranks(ranks: Sequence[int], report: RunReport) -> str:
    labels = [report.labels.get(rank, f'rank {rank}') for rank in ranks]
    if any(not label.startswith('rank ') for label in labels):  # snapshots that do not say their rank
        more = f' and {len(labels) - _LISTED} more' if len(labels) > _LISTED else ''
        return ', '.join(labels[:_LISTED]) + more
    if len(ranks) == 1:
        return f'Rank {ranks[0]}'
    return 'All ranks' if sorted(ranks) == report.ranks else f'Ranks {rank_list(ranks)}'


def _whose_files(report: RunReport) -> str:
    ranks = report.open_ranks
    if len(ranks) == 1:
        return f"{_ranks(ranks, report)}'s files"
    return f'The files of {"all ranks" if ranks == report.ranks else f"ranks {rank_list(ranks)}"}'


def _failure(failure: Failure, label: str) -> str:
    oom = failure.oom
    where = ''.join(
        [
            f' in batch {failure.batch}' if failure.batch is not None else '',
            f', {failure.phase}' if failure.phase else '',
        ]
    )
    subject = label[:1].upper() + label[1:] if label.startswith('rank ') else label
    if oom is None:
        at = f' ({failure.line})' if failure.line else ''
        if failure.origin == 'stopped':
            return f'{subject} was stopped{where}: {failure.error}{at}.'
        return f'{subject} failed{where}: {failure.error}{at}.'
    asked = f' for {human_bytes(oom.requested)}' if oom.requested is not None else ''
    by = f', asked{asked} by {oom.asked[0]}' if oom.asked else f', asked{asked}' if asked else ''
    return f'{subject} ran out of memory{where}{by}.{_device_memory(oom)}'


def _device_memory(oom: OutOfMemorySummary) -> str:
    """The sizes that the recorder knows of the device, in a sentence that begins with a space; ``''`` without any."""
    parts = []
    if oom.reserved is not None:
        in_use = f' ({human_bytes(oom.allocated)} in use)' if oom.allocated is not None else ''
        parts.append(f'{human_bytes(oom.reserved)} reserved by torch{in_use}')
    elif oom.allocated is not None:
        parts.append(f'{human_bytes(oom.allocated)} in use by torch')
    if oom.total is not None and oom.reserved is not None and oom.free is not None:
        outside = oom.total - oom.reserved - oom.free
        if outside > 0:
            parts.append(f'{human_bytes(outside)} used outside of torch (CUDA context, libraries, other processes)')
    if oom.free is not None:
        parts.append(f'{human_bytes(oom.free)} free')
    if not parts:
        return ''
    total = f'The device has {human_bytes(oom.total)}: ' if oom.total is not None else ''
    return f' {total}{", ".join(parts)}.'
