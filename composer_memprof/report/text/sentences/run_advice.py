"""Advice in sentences: the memory that each change frees, as estimated or as tried, and whether the run then fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from composer_memprof.analysis.memory.summary import OutOfMemorySummary
from composer_memprof.analysis.run_report.advice.kinds import Advice
from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.analysis.run_report.trials import Trials, TriedChange
from composer_memprof.messages import human_bytes

#: Peaks that differ by more than this share are both told.
_ALIKE = 0.05
#: A change that frees less than this share of the peak does not lower it.
_SMALLEST = 0.005


def advice_details(report: RunReport) -> Iterator[list[str]]:
    """The figures behind each piece of advice, as sentences."""
    return (_details(each, report.trials is not None) for each in report.advice)


def _details(advice: Advice, others_were_tried: bool) -> list[str]:
    found = [advice.why]
    tried = advice.tried
    if tried is not None and not tried.error:
        found.append(_peak_falls(tried))
        found += _takes_longer(tried)
    elif advice.replayed and advice.frees:
        found.append(f"A replay on torch's own allocator frees {_size(advice)}.")
    elif advice.frees:
        found.append(f'It frees about {_size(advice)}{", by an estimate" if others_were_tried else ""}.')
    if tried is not None and tried.error:
        found.append(f'It could not be simulated: {tried.error}.')
    costs = '; '.join(filter(None, [advice.costs, tried.costs if tried is not None and not tried.error else '']))
    if costs:
        found.append(f'It costs: {costs}.')
    return found


def _size(advice: Advice) -> str:
    return human_bytes(advice.frees or 0) + (' of reserved memory' if advice.reserved else '')


def _peak_falls(tried: TriedChange) -> str:
    less = tried.before - tried.after
    if less <= _SMALLEST * tried.before:
        return f'Simulated ({tried.name}): the peak of {human_bytes(tried.before)} does not fall.'
    return (
        f'Simulated ({tried.name}): the peak falls by {human_bytes(less)}, from {human_bytes(tried.before)} to '
        f'{human_bytes(tried.after)}.'
    )


def _takes_longer(tried: TriedChange) -> Iterator[str]:
    if tried.slower is None:
        return
    if abs(tried.slower) < _SMALLEST:
        yield 'A sample takes as long as without it.'
    else:
        yield f'A sample takes {abs(tried.slower):.0%} {"longer" if tried.slower > 0 else "less time"}.'


def trial_notes(report: RunReport) -> Iterator[str]:
    """Sentences about the simulation as a whole: the GPUs it ran on, or why there is none."""
    trials = report.trials
    if report.not_tried:
        yield f'Nothing was simulated, so that all figures of changes are estimates: {report.not_tried}.'
    if trials is None:
        return
    text = f'The changes were simulated on {_where(trials)}'
    recorded = max((summary.peak_bytes for summary in report.summaries.values()), default=0)
    if recorded and abs(trials.peak - recorded) > _ALIKE * recorded:
        text += f', where the peak is {human_bytes(trials.peak)}; {human_bytes(recorded)} were recorded'
    yield f'{text}.'
    if trials.speed:
        yield f'Simulated, {"; ".join(trials.speed)}.'


def _where(trials: Trials) -> str:
    return f'one {trials.gpu} of {trials.ranks}' if trials.ranks > 1 else f'a single {trials.gpu}'


def what_fits(report: RunReport) -> Iterator[str]:
    """For a run that ran out of memory: whether one change suffices, or several together."""
    oom = next((failure.oom for failure in report.failures if failure.oom is not None), None)
    if oom is None:
        return
    if report.trials is None:
        yield from _room_by_estimate(oom, report.advice)
    else:
        yield _fits_simulated(report.trials)


def _fits_simulated(trials: Trials) -> str:
    where = f'Simulated on {_where(trials)}'
    needs = f'{human_bytes(trials.reserved)} of {human_bytes(trials.available)}'
    if trials.fits:
        return f'{where}, the run fits: it needs {needs}.'
    enough = [change for change in trials.changes if change.fits]
    if enough:
        return f'{where}, the run needs {needs}. Each of these suffices: {_names(enough)}.'
    if trials.together is not None and trials.together.fits:
        return (
            f'{where}, the run needs {needs}. No change suffices alone; these do together: {_names([trials.together])}.'
        )
    return f'{where}, the run needs {needs}. No change that was tried suffices, nor do all of them together.'


def _names(changes: Sequence[TriedChange]) -> str:
    return '; '.join(f'{change.name} ({change.how})' if change.how else change.name for change in changes)


def _room_by_estimate(oom: OutOfMemorySummary, advice: Sequence[Advice]) -> Iterator[str]:
    """Changes that make room for the allocation that failed. How much more the batch would need is not known."""
    if oom.requested is None or oom.free is None:
        return
    missing = oom.requested - oom.free
    freed = taken = 0
    for number, each in enumerate(advice, 1):
        if freed < missing and each.frees:
            freed, taken = freed + each.frees, number
    if not freed or missing <= 0:
        return
    begin = f'{human_bytes(missing)} short.'
    end = 'The batch may need more after that; report --simulate tries it.'
    enough = [number for number, each in enumerate(advice, 1) if (each.frees or 0) >= missing]
    if enough:
        one = f'Change {enough[0]} below' if len(advice) > 1 else 'The change below'
        which = f'{one} is' if len(enough) == 1 else f'Changes {_listed(enough)} below are each'
        yield f'{begin} {which} estimated to free enough. {end}'
    elif freed >= missing:
        yield f'{begin} The first {taken} changes below are estimated to free enough together. {end}'
    else:
        yield f'{begin} All changes below together are estimated to free less. {end}'


def _listed(numbers: Sequence[int]) -> str:
    return f'{", ".join(map(str, numbers[:-1]))} and {numbers[-1]}'
