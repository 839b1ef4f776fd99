"""What the page of a snapshot says in its header: about each device, and about a failure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from composer_memprof.analysis.memory.blocks.phases import batch_and_phase, batch_and_phase_at_end
from composer_memprof.analysis.memory.findings.failure import OutOfMemoryEvent, failure_moment, out_of_memory_events
from composer_memprof.analysis.memory.pictures.timeline import AllocationTimeline
from composer_memprof.analysis.snapshot.model import DeviceHistory, Snapshot
from composer_memprof.messages import human_bytes
from composer_memprof.report.html.snapshot.times import times_kept

#: Frames of the request that failed.
_FAILED_FRAMES = 4
#: Failed allocations that the header tells.
_FAILURES = 5


@dataclass(frozen=True)
class DeviceFacts:
    """One device: its peak, the failure if there was one, and what is drawn of it."""

    name: str
    peak: str
    moment: str
    reserved: str
    rss: str
    failed: str
    failed_moment: str
    drawn: str


@dataclass(frozen=True)
class FailureFacts:
    """One failure: the one that the snapshot was taken for, or an allocation that failed."""

    headline: str
    sizes: str
    error: str
    frames: list[str]


def device_facts(
    timeline: AllocationTimeline, snapshot: Snapshot, history: DeviceHistory, max_times: int
) -> DeviceFacts:
    """The facts of a device. The page keeps at most ``max_times`` of its times."""
    failed = failure_moment(snapshot, history)
    return DeviceFacts(
        name=_device_name(snapshot.meta.device or 'device', timeline.device),
        peak=human_bytes(timeline.peak_bytes),
        moment=_moment_text(timeline, timeline.peak, snapshot, history),
        reserved='' if timeline.reserved is None else human_bytes(int(timeline.reserved.max())),
        rss='' if snapshot.rss_peak is None else human_bytes(snapshot.rss_peak),
        failed='' if failed is None else human_bytes(int(timeline.total[failed])),
        failed_moment='' if failed is None else _moment_text(timeline, failed, snapshot, history),
        drawn=_drawn_text(timeline, max_times),
    )


def failure_facts(snapshot: Snapshot, timelines: list[AllocationTimeline]) -> list[FailureFacts]:
    """The facts of each failure, the last one first; empty without one."""
    found = out_of_memory_events(snapshot, [(timeline.total, timeline.reserved) for timeline in timelines])
    shown = found[-_FAILURES:]
    facts = []
    for number, oom in enumerate(shown, start=len(found) - len(shown) + 1):
        count = f' ({number} of {len(found)})' if len(found) > 1 else ''
        ended = number == len(found) and snapshot.oom is not None
        facts.append(_out_of_memory(snapshot, oom, count, (snapshot.error or oom.message or '') if ended else ''))
    if not snapshot.error or snapshot.oom is not None:
        return facts[::-1]
    history = next(iter(snapshot.devices), None)
    where = [] if history is None else _place_text(*batch_and_phase_at_end(snapshot, history))
    return [FailureFacts(', '.join(['Training failed', *where]), '', snapshot.error, []), *facts[::-1]]


def _out_of_memory(snapshot: Snapshot, oom: OutOfMemoryEvent, count: str, error: str) -> FailureFacts:
    where = '' if oom.device is None else f' on {_device_name(snapshot.meta.device or "device", oom.device)}'
    requested = '' if oom.requested is None else f': {human_bytes(oom.requested)} requested'
    sizes = [
        f'{human_bytes(size)} {label}'
        for label, size in (
            ('free on the device', oom.free),
            ('allocated', oom.allocated),
            ('reserved', oom.reserved),
            ('in total', oom.total),
        )
        if size is not None
    ]
    return FailureFacts(
        headline=', '.join([f'Out of memory{count}{where}', *_place_text(oom.batch, oom.phase)]) + requested,
        sizes=' · '.join(sizes),
        error=error,
        frames=[str(frame) for frame in oom.asked[:_FAILED_FRAMES]],
    )


def _device_name(kind: str, number: int) -> str:
    return 'cpu' if kind == 'cpu' else f'{kind} {number}'


def _moment_text(timeline: AllocationTimeline, moment: int, snapshot: Snapshot, history: DeviceHistory) -> str:
    text = f'after event {moment:,} of {timeline.events:,}'
    if timeline.time_us is not None:
        text += f', {_time_text(int(timeline.time_us[moment]))} from the first'
    return ', '.join([text, *_place_text(*batch_and_phase(snapshot, history, moment))])


def _place_text(batch: int | None, phase: str) -> list[str]:
    return [*([] if batch is None else [f'batch {batch}']), *([phase] if phase else [])]


def _drawn_text(timeline: AllocationTimeline, max_times: int) -> str:
    smaller, drawn = timeline.smaller, len(timeline.blocks)
    if smaller.blocks:
        # Rounded down, so that it is never 100 % of only some blocks.
        share = 1000 * int(timeline.live_blocks(timeline.peak)['size'].sum()) // max(timeline.peak_bytes, 1) / 10
        text = (
            f'Of {drawn + smaller.blocks:,} blocks the {drawn:,} largest, {share:.1f} % of the peak, are drawn '
            f'one by one. The others, {human_bytes(smaller.largest)} or smaller, are hatched: they are summed by line '
            f'and category at {len(smaller.moments):,} moments, with the highest and lowest point of each span of time.'
        )
    else:
        text = f'All {drawn:,} blocks are drawn exactly.'
    if timeline.time_us is not None and len(timeline.time_us) > max_times:
        kept = times_kept(timeline.time_us, max_times)
        between = np.interp(np.arange(len(timeline.time_us)), kept, timeline.time_us[kept])
        error = int(np.ceil(np.abs(between - timeline.time_us).max()))
        text += f' Times are off by at most {_time_text(error)}.'
    return text


def _time_text(time_us: int) -> str:
    if time_us < 1000:
        return f'{time_us} µs'
    return f'{time_us / 1000:.1f} ms' if time_us < 10_000_000 else f'{time_us / 1e6:.2f} s'
