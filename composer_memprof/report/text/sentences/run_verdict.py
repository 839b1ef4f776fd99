"""The verdict on a run, in sentences, and what to change. The terminal and the page say the same."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from composer_memprof.analysis.memory.snapshot_report import DeviceReport
from composer_memprof.analysis.memory.summary import DeviceSummary
from composer_memprof.analysis.run import rank_list
from composer_memprof.analysis.run_report.causes.kinds import SLOW, WORKERS, Cause, Straggler, TimeTaken, Waiting
from composer_memprof.analysis.run_report.causes.ranking import ended_the_run
from composer_memprof.analysis.run_report.causes.speed import typical, waiting_share, worker_starts
from composer_memprof.analysis.run_report.differences import Difference, OddRank
from composer_memprof.analysis.run_report.figures import CATEGORY, MODULE, PHASE
from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.messages import count_of, human_bytes, printable
from composer_memprof.recorders.step_times.summary import TOTAL
from composer_memprof.report.text.amounts import amount
from composer_memprof.report.text.sentences.run_advice import advice_details, trial_notes, what_fits
from composer_memprof.report.text.sentences.run_causes import cause_sentence
from composer_memprof.report.text.sentences.run_failures import attempt_sentences, failure_sentences
from composer_memprof.report.text.sentences.run_files import kind_sentences
from composer_memprof.report.text.terminal.run_table import left_out_sentences
from composer_memprof.vocabulary import CATEGORY_LABELS

#: Most odd ranks that have sentences of their own, and most ranks that a sentence lists.
_ODD, _LISTED = 3, 8
#: Most files that are named as not read.
_UNREADABLE = 10
#: Peaks that differ by less are not told apart.
_ALIKE, _ALIKE_SECONDS = 1.01, 1.1
#: A place is named that has this share of its category.
_OF_CATEGORY = 0.05
#: From this share of a limit on, it is said to be close.
_CLOSE = 0.9
#: The start of workers is said from these seconds on, and so many times a typical batch.
_LONG_START, _OF_A_BATCH = 0.5, 10
_SUBJECTS = {
    'memory_snapshot': 'its peak of allocated memory is',
    'fsdp_mem_tracker': "its peak of the model's memory is",
    'saved_tensors_hook': 'autograd saves',
    'host_rss': 'its peak of host memory is',
    'step_times': 'its median batch takes',
    'flops': 'a batch takes',
}


@dataclass(frozen=True)
class Sentence:
    """One sentence of the verdict.

    Args:
        about (str): ``'failure'``, ``'change'``, ``'rank'``, ``'peak'``, ``'host'``, ``'growth'``, ``'speed'``,
            ``'recording'``, ``'attempts'`` or ``'files'``.
        text (str): the sentence, or several.
    """

    about: str
    text: str


def verdict(report: RunReport) -> list[Sentence]:
    """What to know about a run, what matters most first. Every text is printable."""
    out_of_memory = [failure.rank for failure in report.failures if failure.oom is not None]
    before = [cause for cause in report.causes if ended_the_run(cause, out_of_memory)]
    found = [
        *(Sentence('failure', cause_sentence(cause, report)) for cause in before),
        *_failures(report),
        *_changes(report),
        *_by_cost([cause for cause in report.causes if cause not in before], report),
        *_peaks(report),
        *_host(report),
        *_speed(report),
        *(Sentence('recording', text) for text in kind_sentences(report)),
        *_attempts(report),
        *_files(report),
    ]
    return [Sentence(sentence.about, printable(sentence.text)) for sentence in found]


def verdict_text(report: RunReport) -> RenderableType:
    """The verdict and what to change, for a terminal."""
    lines: list[RenderableType] = [Text(title(report), style='bold')]
    lines += [Padding(Text(sentence.text), (0, 0, 0, 2)) for sentence in verdict(report)]
    if report.advice:
        lines.append(Text('\nWhat to change', style='bold'))
        for number, (each, details) in enumerate(zip(report.advice, advice_details(report)), 1):
            numbered = f'{number}. ' if len(report.advice) > 1 else ''
            lines.append(Padding(Text(f'{numbered}{printable(each.what)}'), (0, 0, 0, 2)))
            lines.append(Padding(Text(printable(' '.join(details))), (0, 0, 0, 4)))
            lines += [Padding(Text(row, style='cyan'), (0, 0, 0, 6)) for row in each.code.splitlines() if row]
        lines += [Padding(Text(printable(note), style='dim'), (0, 0, 0, 2)) for note in trial_notes(report)]
    return Group(*lines)


def title(report: RunReport) -> str:
    """The run's name and how many ranks it has; simulated ones are said to be."""
    simulated = f', simulated: {report.simulated}' if report.simulated else ''
    return printable(f'{report.files.name}: {count_of(len(report.ranks), _noun(report))}{simulated}')


def _noun(report: RunReport) -> str:
    return 'rank' if report.files.artifacts else 'snapshot'


def _failures(report: RunReport) -> Iterator[Sentence]:
    for text in failure_sentences(report):
        yield Sentence('failure', text)
    for text in what_fits(report) if report.failures else ():
        yield Sentence('failure', text)


def _attempts(report: RunReport) -> Iterator[Sentence]:
    sentences = attempt_sentences(report.attempts)
    if sentences:
        yield Sentence('attempts', ' '.join(sentences))


def _by_cost(causes: Sequence[Cause], report: RunReport) -> Iterator[Sentence]:
    """Causes, and ranks that differ, which cost what they have or take more than the others."""
    odd = max((1 - 1 / each.total.factor for each in _told(report) if each.total.factor > 1), default=0.0)
    yield from _causes([cause for cause in causes if cause.cost > odd], report)
    yield from _odd(report)
    yield from _causes([cause for cause in causes if cause.cost <= odd], report)


def _causes(causes: Sequence[Cause], report: RunReport) -> Iterator[Sentence]:
    for cause in causes:
        about = 'speed' if isinstance(cause, SLOW) else 'growth'
        yield Sentence(about, cause_sentence(cause, report))


def _changes(report: RunReport) -> Iterator[Sentence]:
    comparison = report.comparison
    if comparison is None:
        return
    against = f'Against {comparison.before}'
    changed = [change for change in comparison.changes if _changed(change.total, change.unit)]
    for number, change in enumerate(changed):
        total, subject = change.total, _SUBJECTS.get(change.kind, 'it has')
        text = (
            f'{_capital(subject) if number else f"{against}: {subject}"} {amount(total.value, change.unit)}, {_times(total)} '
            f'{amount(total.others, change.unit)}.'
        )
        parts = [
            f'{CATEGORY_LABELS.get(each.name, each.name)} ({amount(each.others, change.unit)} to '
            f'{amount(each.value, change.unit)})'
            for group in (CATEGORY, MODULE, PHASE)
            for each in [each for each in change.figures if each.group == group and _changed(each, change.unit)][:1]
        ]
        yield Sentence('change', text + (f' What changed most: {", ".join(parts)}.' if parts else ''))
    for each in comparison.across:
        yield Sentence(
            'change',
            f'{against}: {each.what} {amount(each.after, each.unit)} by {each.after_kind}, {amount(each.before, each.unit)} '
            f'there by {each.before_kind}.',
        )
    if not comparison.changes:
        yield Sentence(
            'change',
            f'{against}: the two runs have no figures of the same kind; it has those of {_joined(comparison.kinds_before)}, '
            f'this one those of {_joined(comparison.kinds_after)}.',
        )
    elif not changed:
        yield Sentence('change', f'{against}: no total changed.')


def _changed(difference: Difference, unit: str) -> bool:
    alike = _ALIKE_SECONDS if unit == 'seconds' else _ALIKE
    return abs(difference.value - difference.others) > (alike - 1) * abs(difference.others)


def _odd(report: RunReport) -> Iterator[Sentence]:
    told: dict[int, OddRank] = {}
    for odd in _told(report):
        told.setdefault(odd.rank, odd)
    # Of many that differ, the first one's sentence stands for all.
    several = len(told) > _ODD
    for odd in list(told.values())[: 1 if several else _ODD]:
        yield Sentence('rank', _odd_rank(odd, report.labels))
    if several:
        others = list(told)[1:]
        yield Sentence('rank', f'{len(others)} other ranks differ too: {rank_list(others)}.')


def _told(report: RunReport) -> list[OddRank]:
    """The ranks that differ. In time they all do if one is a straggler, which has a sentence of its own."""
    has_straggler = any(isinstance(cause, Straggler) for cause in report.causes)
    return [odd for odd in report.odd if not (has_straggler and odd.unit == 'seconds')]


def _odd_rank(odd: OddRank, labels: dict[int, str]) -> str:
    total = odd.total
    whose = 'that of the other rank' if odd.ranks == 2 else f'the median of the other {odd.ranks - 1} ranks'
    subject = f'its {total.name} takes' if total.group == PHASE else _SUBJECTS.get(odd.kind, 'it has')
    begin = (
        f'{_capital(labels[odd.rank])} differs: {subject} {amount(total.value, odd.unit)}, '
        f'{_times(total)} {whose} ({amount(total.others, odd.unit)}).'
    )
    groups = (PHASE,) if odd.unit == 'seconds' and total.group != PHASE else (CATEGORY, MODULE)
    parts = [_part(difference, odd.unit) for difference in odd.most if difference.group in groups]
    return begin + (f' Largest parts of the difference: {" and ".join(parts)}.' if parts else '')


def _part(difference: Difference, unit: str) -> str:
    label = CATEGORY_LABELS.get(difference.name, difference.name)
    factor = f'{_times(difference)} theirs' if difference.others else 'where they have none'
    return f'{label} ({amount(difference.value, unit)}, {factor})'


def _times(difference: Difference) -> str:
    return f'{difference.factor:.{1 if difference.factor >= 1.1 else 2}f} times'


def _peaks(report: RunReport) -> Iterator[Sentence]:
    totals = {rank: summary.peak_bytes for rank, summary in report.summaries.items()}
    if report.lead is not None:
        device = report.lead.report.largest_device
        if device is not None:
            yield Sentence('peak', _peak(device, report, report.lead.rank) + _leading(device))
    elif totals:
        rank = max(totals, key=lambda rank: totals[rank])
        largest = report.summaries[rank].largest_device
        if largest is not None:
            yield Sentence('peak', _peak(largest, report, rank) + _leading_in_summary(largest))
    least, most = min(totals.values(), default=0), max(totals.values(), default=0)
    if most > _ALIKE * least:
        count = count_of(len(totals), _noun(report))
        yield Sentence('peak', f'Over {count} the peak is {human_bytes(least)} to {human_bytes(most)}.')


def _peak(device: DeviceReport | DeviceSummary, report: RunReport, rank: int) -> str:
    peak = device.peak
    places = [*([] if peak.batch is None else [f'batch {peak.batch}']), *([peak.phase] if peak.phase else [])]
    where = f' in {", ".join(places)}' if places else ''
    of = f' of {human_bytes(device.memory)} ({100 * peak.bytes / device.memory:.0f} %)' if device.memory else ''
    name = f' of {report.labels[rank]}' if len(report.ranks) > 1 else ''
    text = f'The peak{name} is {human_bytes(peak.bytes)}{of} allocated{where}'
    if device.reserved_peak is not None:
        text += f'; at most {human_bytes(device.reserved_peak)} were reserved'
        if device.memory and device.reserved_peak > _CLOSE * device.memory:
            text += f', {human_bytes(device.memory - device.reserved_peak)} less than the device has'
    return text + '.'


def _leading(device: DeviceReport) -> str:
    """The category that leads at the peak, and its largest places."""
    if not device.peak.categories:
        return ''
    first = device.peak.categories[0]
    places = [(share.category, share.bytes, [frame.short() for frame in share.frames]) for share in device.peak.holders]
    return _leads(first.category, first.bytes, device.peak.bytes, places)


def _leading_in_summary(device: DeviceSummary) -> str:
    if not device.categories:
        return ''
    category, size = max(device.categories.items(), key=lambda item: item[1])
    places = [(share.category, share.bytes, share.at) for share in device.holders]
    return _leads(category, size, device.peak.bytes, places)


def _leads(category: str, size: int, total: int, places: Iterable[tuple[str, int, list[str]]]) -> str:
    text = (
        f' {_capital(CATEGORY_LABELS.get(category, category))} leads with {human_bytes(size)} ({_share(size, total)})'
    )
    least = _OF_CATEGORY * size
    lines: Counter[str] = Counter()  # several callers of one line count together
    for other, own, frames in places:
        if frames and other == category:
            lines[frames[0]] += own
    named = [f'{human_bytes(own)} by {line}' for line, own in lines.most_common(3) if own >= least]
    return f'{text}: {", ".join(named)}.' if named else f'{text}.'


def _host(report: RunReport) -> Iterator[Sentence]:
    files = {rank: file for rank, file in report.contents.get('host_rss', {}).items() if file.samples}
    if not files:
        return
    rank = max(files, key=lambda rank: files[rank].rss_peak)
    file = files[rank]
    name = f' of {report.labels[rank]}' if len(report.ranks) > 1 else ''
    text = f'Host memory{name} peaks at {human_bytes(file.rss_peak)} (RSS of the process and its children)'
    if file.limit is not None and file.usage_peak is not None:
        text += f'; the job used {human_bytes(file.usage_peak)} of the {human_bytes(file.limit)} at which it is killed'
    yield Sentence('host', text + '.')


def _speed(report: RunReport) -> Iterator[Sentence]:
    parts = []
    used = [file.mfu for file in report.contents.get('flops', {}).values() if file.mfu is not None]
    if used:
        parts.append(f'model FLOPs utilization (MFU) is {100 * statistics.median(used):.1f} %')
    times = report.contents.get('step_times', {})
    timed = [file for file in times.values() if file.batches]  # none if the run failed before
    batches = [file.seconds['total']['p50'] for file in timed if 'p50' in file.seconds.get('total', {})]
    if batches:
        parts.append(f'the median batch takes {amount(statistics.median(batches), "seconds")}')
        waiting = statistics.median(waiting_share(file) for file in times.values())
        if not any(isinstance(cause, Waiting) for cause in report.causes):
            parts.append(f'{100 * waiting:.0f} % of the time is spent waiting for data')
    if parts:
        waits = [(file.epoch_starts.first, typical(file, TOTAL)) for file in timed if worker_starts(file)]
        first, later = max(waits, default=(0.0, 0.0))
        starts = ''
        if first >= _LONG_START and first >= _OF_A_BATCH * later and not _names_starts(report):
            starts = f" The run's first batch waited {amount(first, 'seconds')} for the DataLoader's workers to start."
        of_ranks = ' These are medians of the ranks.' if max(len(used), len(batches)) > 1 else ''
        yield Sentence('speed', f'{_capital(_joined(parts))}.{of_ranks}{starts}')


def _names_starts(report: RunReport) -> bool:
    return any(isinstance(cause, TimeTaken) and cause.phase == WORKERS for cause in report.causes)


def _files(report: RunReport) -> Iterator[Sentence]:
    status = report.status
    parts = []
    if status.get('failed'):
        parts.append(f'{count_of(status["failed"], "file")} could not be uploaded')
    if status.get('open'):
        verb, why = 'is' if status['open'] == 1 else 'are', ': the run goes on' if report.goes_on else ''
        parts.append(f'{count_of(status["open"], "file")} {verb} still open{why}')
    waiting = [
        artifact for artifact in report.files.artifacts if artifact.entry.status == 'saved' and artifact.entry.remote
    ]
    if waiting:
        parts.append(f'{count_of(len(waiting), "file")} not uploaded yet (composer-memprof push)')
    if status.get('handed_over'):
        files = count_of(status['handed_over'], 'file')
        parts.append(f"{files} handed over to Composer's logger, not seen in its store yet (composer-memprof push)")
    if report.unreadable:
        more = f', and {len(report.unreadable) - _UNREADABLE} more' if len(report.unreadable) > _UNREADABLE else ''
        parts.append(f'not read: {", ".join(report.unreadable[:_UNREADABLE])}{more}')
    if report.files.left_out:
        parts.append(f'{count_of(report.files.left_out, "further snapshot")} not read')
    if parts:
        yield Sentence('files', f'{_capital("; ".join(parts))}.')
    for text in left_out_sentences(report.files.windows_left_out):
        yield Sentence('files', text)


def _share(part: float, whole: float) -> str:
    return f'{100 * part / whole:.0f} %' if whole else '0 %'


def _listed(names: Sequence[str]) -> str:
    more = f' and {len(names) - _LISTED} more' if len(names) > _LISTED else ''
    return ', '.join(names[:_LISTED]) + more


def _joined(parts: Iterable[str]) -> str:
    *some, last = list(parts) or ['no callback']
    return f'{", ".join(some)} and {last}' if some else last


def _capital(text: str) -> str:
    """A file's name stays as it is."""
    return text if '.' in text.split(' ')[0] else text[:1].upper() + text[1:]
