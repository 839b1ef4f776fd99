"""The terminal output of ``inspect`` and ``diff``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Optional

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from composer_memprof.analysis.memory.blocks.time_span import TimeSpan
from composer_memprof.analysis.memory.findings.attribution import PlaceShare
from composer_memprof.analysis.memory.findings.diff import CategoryChange, DeviceDiff, Diff
from composer_memprof.analysis.memory.findings.failure import OutOfMemoryEvent
from composer_memprof.analysis.memory.findings.module_totals import outside_of
from composer_memprof.analysis.memory.findings.peak import Peak
from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport
from composer_memprof.analysis.run import RankSnapshot, rank_list
from composer_memprof.analysis.snapshot.model import Frame
from composer_memprof.messages import count_of, human_bytes, printable
from composer_memprof.report.text.places import library_frame_text
from composer_memprof.vocabulary import CATEGORY_LABELS

#: Most places, modules and growing places.
_PLACES, _MODULES, _GROWING = 12, 8, 3
#: Most categories of what was allocated when memory ran out.
_LARGEST = 5
#: Most places of what was allocated when an allocation failed before the last one that did.
_HELD_THEN = 3
#: Shares that are not shown if smaller: idle memory of the reserved; rounding, blocks not freed and a place of the peak.
_IDLE, _ROUNDING, _HELD, _SMALL = 0.05, 0.02, 0.01, 0.005
#: Most frames of a stack, and the indentation of lines below a size.
_FRAMES, _UNDER = 4, 20


def report_text(report: SnapshotReport) -> RenderableType:
    """The output of ``inspect``."""
    parts: list[RenderableType] = []
    for number, oom in enumerate(report.ooms, start=1):
        count = f' ({number} of {len(report.ooms)})' if len(report.ooms) > 1 else ''
        parts += [_oom(oom, count, report.devices, number == len(report.ooms)), Text()]
    if report.error and not report.ended_out_of_memory:
        parts += [Text(f'The training ended with {report.error}', style='bold'), Text()]
    for device in sorted(report.devices, key=lambda device: (not _failed(device, report), -device.peak.bytes)):
        parts += _device(device, report.span)
    parts += [Text(note, style='dim') for note in report.notes]
    return Group(*parts)


def _failed(device: DeviceReport, report: SnapshotReport) -> bool:
    return report.oom is not None and device.device == report.oom.device


def chosen_text(chosen: RankSnapshot) -> list[str]:
    """Why this one of a run's snapshots is shown, and which ranks have one or failed too; no line for a lone one."""
    lines = []
    if chosen.failure or chosen.others:
        why = f'rank {chosen.rank} {chosen.failure}' if chosen.failure else f'the newest of rank {chosen.rank}'
        ranks = f'; ranks with a snapshot: {rank_list(chosen.ranks)}' if chosen.others else ''
        lines.append(f'({why}{ranks})')
    for what in dict.fromkeys(chosen.failed.values()):
        others = [rank for rank, failure in chosen.failed.items() if failure == what and rank != chosen.rank]
        if others:
            lines.append(f'({what}{" too" if chosen.failure else ""}: rank {rank_list(others)})')
    return lines


def diff_text(found: Diff) -> RenderableType:
    """The output of ``diff``."""
    parts: list[RenderableType] = []
    for device in found.devices:
        parts += _device_diff(device)
    parts += [Text(printable(note), style='dim') for note in found.notes]
    return Group(*parts)


def _device(device: DeviceReport, span: Optional[TimeSpan]) -> Iterator[RenderableType]:
    peak, failed = device.peak, device.at_failure
    if failed is not None and failed.event != peak.event and span is None:
        yield from _peak(f'At the failure on device {device.device}: {human_bytes(failed.bytes)} allocated', failed, [])
    reserved = [] if device.reserved_peak is None else [f'at most {human_bytes(device.reserved_peak)} reserved']
    resident = (
        ''
        if device.rss_peak is None or span is not None
        else f', {human_bytes(device.rss_peak)} resident in the process (RSS)'
    )
    where = f'device {device.device}{_span_text(span)}'
    yield from _peak(f'Peak of {where}: {human_bytes(peak.bytes)} allocated{resident}', peak, reserved)
    yield from _modules(peak)
    yield from _idle(device)
    if span is not None:  # the rest is about the whole recording
        return
    yield from _pools(device)
    yield from _rounding(device)
    yield from _growth(device)


def _span_text(span: Optional[TimeSpan]) -> str:
    if span is None:
        return ''
    begin = '' if span.begin_ms is None else f' from {span.begin_ms:g} ms'
    return begin if span.end_ms is None else f'{begin} to {span.end_ms:g} ms'


def _peak(title: str, peak: Peak, more: Sequence[str]) -> Iterator[RenderableType]:
    """The allocated blocks by category and by place."""
    yield Text(title, style='bold')
    when = _when(peak.batch, peak.phase)
    when.append(f'event {peak.event} of {peak.events}')
    if peak.time_us is not None:
        when.append(f'{peak.time_us / 1000:.1f} ms after the first')
    yield _indented(Text(', '.join(when)))
    for line in more:
        yield _indented(Text(line))
    yield Text()

    yield Text('By category', style='bold')
    for share in peak.categories:
        yield _indented(_sized(share.bytes, peak.bytes, _label(share.category)))
        for rule in share.rules:
            reason = rule.rule if len(share.rules) == 1 else f'{human_bytes(rule.bytes)} {rule.rule}'
            yield Padding(Text(reason, style='dim'), (0, 0, 0, _UNDER), expand=False)
    yield Text()

    yield Text('By place in the code', style='bold')
    yield from _places(peak.holders, peak.bytes)
    yield Text()


def _modules(peak: Peak) -> Iterator[RenderableType]:
    if not peak.module_totals:
        return
    yield Text('By module, with everything inside of it', style='bold')
    shown = peak.module_totals[:_MODULES]
    for module in shown:
        own = f' ({human_bytes(module.own)} own)' if 0 < module.own < module.bytes else ''
        yield _indented(_sized(module.bytes, peak.bytes, f'{module.module}{own}'))
    yield from _rest('modules', [module.own for module in outside_of(shown, peak.module_totals)])
    for share in peak.modules:
        if not share.module:
            yield _indented(_sized(share.bytes, peak.bytes, 'none or unknown'))
    yield Text()


def _idle(device: DeviceReport) -> Iterator[RenderableType]:
    lost = device.fragmentation
    if lost is None or lost.idle <= _IDLE * lost.reserved:
        return
    yield Text('Reserved but not used at the peak', style='bold')
    text = f'{human_bytes(lost.idle)} of {human_bytes(lost.reserved)}'
    if lost.idle_segments is not None and lost.holes is not None and lost.largest_hole is not None:
        text += (
            f': {human_bytes(lost.idle_segments)} in empty segments, {human_bytes(lost.holes)} between blocks. '
            f'Largest allocation that fits there: {human_bytes(lost.largest_hole)}.'
        )
    yield _indented(Text(text))
    if lost.growing:
        yield _indented(Text('Allocations that made the allocator reserve more:'))
    for place in lost.growing[:_GROWING]:
        idle = f', while up to {human_bytes(place.idle)} were not used' if place.idle else ''
        yield _indented(Text(f'{human_bytes(place.bytes)} in {count_of(place.times, "segment")}{idle}'))
        yield _frames(place.frames, place.folded, place.within)
    yield Text()


def _pools(device: DeviceReport) -> Iterator[RenderableType]:
    """Shown if there is more than the two default pools on one stream: pools and streams share no free memory."""
    if all(pool.pool in ('', 'small', 'large') and pool.stream == device.pools[0].stream for pool in device.pools):
        return
    yield Text('Reserved at the end, by pool and stream', style='bold')
    for pool in device.pools[:_MODULES]:
        what = f'{pool.pool or "pool"} on stream {pool.stream}, {count_of(pool.segments, "segment")}'
        yield _indented(_sized(pool.reserved, device.reserved_at_end or 0, what))
    yield from _rest('pools', [pool.reserved for pool in device.pools[_MODULES:]])
    yield Text()


def _rounding(device: DeviceReport) -> Iterator[RenderableType]:
    added = device.rounded_at_end - device.requested_at_end
    if added > _ROUNDING * device.rounded_at_end:
        yield Text('Lost to rounding up', style='bold')
        size, whole = human_bytes(added), human_bytes(device.rounded_at_end)
        yield _indented(Text(f'{size} of the {whole} in blocks at the end were not requested'))
        yield Text()


def _growth(device: DeviceReport) -> Iterator[RenderableType]:
    growth = device.growth
    if growth.steady is not None:
        batches = f'in every {growth.unit} from {growth.batches[0]} to {growth.batches[-1]}'
        if growth.steady:
            yield Text(f'Steady: no place in the code grew {batches}')
        else:
            yield Text(f'Growing {batches}', style='bold')
        for place in growth.growing[:_GROWING]:
            keeper = f', kept by {place.kept_by}' if place.kept_by else ''
            size = (
                f'{human_bytes(place.per_batch)} per {growth.unit}, {human_bytes(place.at_end[-1])} at the end{keeper}'
            )
            yield _indented(Text(size))
            yield _frames(place.frames, place.folded, place.within)
        yield from _rest('places', [place.at_end[-1] for place in growth.growing[_GROWING:]])
        yield Text()
    if growth.held_bytes > _HELD * device.peak.bytes:
        yield Text('Not freed at the end, without parameters, buffers, gradients and optimizer state', style='bold')
        yield from _places(growth.held, growth.held_bytes, _GROWING)
        yield Text()


def _oom(oom: OutOfMemoryEvent, count: str, devices: Sequence[DeviceReport], is_last: bool) -> RenderableType:
    device = '' if oom.device is None else f' on device {oom.device}'
    asked = '' if oom.requested is None else f': {human_bytes(oom.requested)} requested'
    parts: list[RenderableType] = [Text(f'Out of memory{count}{device}{asked}', style='bold red')]
    sizes = [
        f'{human_bytes(size)} {name}'
        for name, size in (('free', oom.free), ('allocated', oom.allocated), ('reserved', oom.reserved))
        if size is not None
    ]
    if oom.total is not None:
        sizes.append(f'{human_bytes(oom.total)} in total')
    held = _held_at(oom, devices)
    when = _when(oom.batch, oom.phase)
    largest: list[str] = []
    if held is not None:
        when.append(f'after event {held.event} of {held.events}')
        if held.time_us is not None:
            when.append(f'{held.time_us / 1000:.1f} ms after the first')
        largest = [f'{human_bytes(share.bytes)} {_label(share.category)}' for share in held.categories[:_LARGEST]]
    for line in (when, sizes, largest):
        if line:
            parts.append(_indented(Text(', '.join(line))))
    if oom.message:
        parts.append(_indented(Text(oom.message, overflow='fold')))
    if oom.asked:
        parts.append(_frames(oom.asked, 0))
    if held is not None and not is_last:  # of the last one a section of its own tells all of it
        parts += [_indented(Text('What held most then:')), *_places(held.holders, held.bytes, _HELD_THEN)]
    return Group(*parts)


def _held_at(oom: OutOfMemoryEvent, devices: Sequence[DeviceReport]) -> Optional[Peak]:
    """What was allocated when the allocation failed, if its event is known."""
    return next(
        (
            peak
            for device in devices
            for peak in device.at_failures
            if device.device == oom.device and peak.event == oom.events
        ),
        None,
    )


def _places(places: Sequence[PlaceShare], whole: int, most: int = _PLACES) -> Iterator[RenderableType]:
    most = min(most, max(sum(place.bytes >= _SMALL * whole for place in places), 1))
    for place in places[:most]:
        before = ', from before the recording' if place.before else ''
        what = f'{_label(place.category)}, {count_of(place.blocks, "block")}{before}'
        yield _indented(_sized(place.bytes, whole, what))
        yield _frames(place.frames, place.folded, place.within, place.module)
    yield from _rest('places', [place.bytes for place in places[most:]])


def _frames(frames: Sequence[Frame], folded: int, within: Optional[Frame] = None, module: str = '') -> RenderableType:
    unknown = f'no stack; module {module} ran' if module else 'no stack recorded'
    lines = [Text(text, overflow='fold') for text in [_frame(frame) for frame in frames[:_FRAMES]] or [unknown]]
    if within is not None:
        lines.insert(0, Text(library_frame_text(within), style='dim', overflow='fold'))
    folded += len(frames[_FRAMES:])
    if folded:
        lines.append(Text(f'… {count_of(folded, "more frame")}'))
    return Padding(Group(*lines), (0, 0, 0, 6), expand=False)


def _frame(frame: Frame) -> str:
    """The file with its folder, which is enough to tell most files apart."""
    folder = PurePath(*PurePath(frame.filename).parts[-2:])
    return str(replace(frame, filename=str(folder)))


def _device_diff(device: DeviceDiff) -> Iterator[RenderableType]:
    of_rank = '' if device.rank is None else f' on rank {device.rank}'
    change = _signed(device.after - device.before)
    yield Text(f'Peak of device {device.device}{of_rank}: {change}', style='bold')
    if device.device_after != device.device:
        yield _indented(Text(f'compared with device {device.device_after}'))
    yield _indented(Text(f'{human_bytes(device.before)} before, {human_bytes(device.after)} after'))
    if device.reserved_before is not None and device.reserved_after is not None:
        before, after = human_bytes(device.reserved_before), human_bytes(device.reserved_after)
        yield _indented(Text(f'at most {before} reserved before, {after} after'))
    yield Text()
    changed = [category for category in device.categories if category.bytes or category.most]
    places = [place for place in device.places if place.bytes]
    if not changed and not places:
        yield Text('Every category and every place in the code holds as much as before.')
        yield Text()
        return
    if changed:
        yield _by_category(changed)
        yield Text()
    if places:
        yield Text('By place in the code, at the peak', style='bold')
    for place in places[:_PLACES]:
        blocks = f'{place.blocks_before} to {count_of(place.blocks_after, "block")}'
        line = Text.assemble((_signed(place.bytes), 'bold'), f'  {_label(place.category)}, {blocks}')
        yield _indented(line)
        yield _frames(place.frames, place.folded, place.within, place.module)
    yield from _rest('places', [place.bytes for place in places[_PLACES:]])
    if places:
        yield Text()


def _when(batch: Optional[int], phase: str) -> list[str]:
    return [*([] if batch is None else [f'batch {batch}']), *([phase] if phase else [])]


def _rest(what: str, sizes: Sequence[int]) -> Iterator[RenderableType]:
    if sizes:
        yield _indented(Text(f'and {human_bytes(sum(sizes))} in {len(sizes)} more {what}', style='dim'))


def _by_category(changes: Sequence[CategoryChange]) -> Table:
    """At the peak, and the most that each category had: a category may reach that at another time."""
    title = Text('By category, at the peak; max: at any time', style='bold')
    table = Table(title=title, title_justify='left', box=None, header_style='dim', padding=(0, 2, 0, 0))
    for name in ('change', 'before', 'after', 'max change'):
        table.add_column(name, justify='right', no_wrap=True)
    table.add_column('category', no_wrap=True)
    for change in changes:
        sizes = (human_bytes(change.before), human_bytes(change.after), _signed(change.most))
        table.add_row(_signed(change.bytes), *sizes, _label(change.category))
    return table


def _indented(text: Text) -> RenderableType:
    return Padding(text, (0, 0, 0, 2), expand=False)


def _sized(size: int, whole: int, what: str) -> Text:
    """``  12.8 GiB  25 %  what``, with sizes and shares aligned to the right."""
    return Text.assemble((f'{human_bytes(size):>10}', 'bold'), f'{_share(size, whole):>6}  {what}', overflow='fold')


def _share(part: int, whole: int) -> str:
    return f'{100 * part / max(whole, 1):.0f} %'


def _signed(change: int) -> str:
    return f'{"+" if change > 0 else ""}{human_bytes(change)}' if change else 'no change'


def _label(category: str) -> str:
    return CATEGORY_LABELS.get(category, category)
