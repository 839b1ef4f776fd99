"""Causes in sentences: what it is, where, and how much it costs."""

from __future__ import annotations

from composer_memprof.analysis.run_report.causes import Cause, DeviceLeak, LargeTensors, Waiting
from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.messages import count_of, human_bytes
from composer_memprof.report.text.amounts import amount

#: In the names of lines that make logits, or use them.
_OF_LOGITS = ('loss', 'logit', 'cross_entropy', 'lm_head')
#: Most lines of a sentence.
_LINES = 3


def cause_sentence(cause: Cause, report: RunReport) -> str:
    """One sentence about a cause, or two."""
    rank = f' on {report.labels.get(cause.rank, f"rank {cause.rank}")}' if len(report.ranks) > 1 else ''
    if isinstance(cause, Waiting):
        return (
            f'Training waits for data for {100 * cause.cost:.0f} % of its time{rank}: {amount(cause.seconds, "seconds")} of '
            f'a batch of {amount(cause.batch, "seconds")}.'
        )
    if isinstance(cause, DeviceLeak):
        return _leak(cause, rank, is_full=any(each.rank == cause.rank and each.oom for each in report.failures))
    if isinstance(cause, LargeTensors):
        return _large_tensors(cause, rank)
    growth = cause.suspect.growth
    more = f' It is the fastest of {cause.ranks} ranks that grow.' if cause.ranks > 1 else ''
    return f'Host memory grows{rank}, in {cause.suspect.name}, by {human_bytes(growth.per_batch)} a batch.{more}'


def _leak(cause: DeviceLeak, rank: str, is_full: bool) -> str:
    line = cause.at[0] if cause.at else 'a line that was not recorded'
    begin = f'Memory ran out{rank} because of a leak' if is_full else f'Memory leaks{rank}'
    text = (
        f'{begin}: what {line} allocates is kept, {human_bytes(cause.per_batch)} more in each {cause.unit}, '
        f'{human_bytes(cause.total)} by now.'
    )
    return text if cause.left is None else f'{text} The device is full after some {cause.left:,} more.'


def _large_tensors(cause: LargeTensors, rank: str) -> str:
    lines = [place.at[0] if place.at else 'a line that was not recorded' for place in cause.places]
    of_logits = any(word in line.lower() for line in lines for word in _OF_LOGITS)
    what = 'the logits and their copies' if of_logits else 'a few large tensors'
    largest = ', '.join(
        f'{human_bytes(place.bytes)} by {line}' for place, line in list(zip(cause.places, lines))[:_LINES]
    )
    return (
        f'Memory ran out{rank} because of {what}: {count_of(cause.tensors, "tensor")} took {human_bytes(cause.bytes)} '
        f'({100 * cause.cost:.0f} % of the peak): {largest}.'
    )
