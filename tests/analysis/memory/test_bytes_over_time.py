"""Bytes over time are those of a walk over the events."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from composer_memprof.analysis.memory.blocks.lifetimes import lifetimes
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.model import ALLOC, FREE_COMPLETED, FREE_REQUESTED, Snapshot
from tests.support.recordings.snapshots import FRAME, event, plain, saved


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    """Histories of a caching allocator that reuses addresses. The recording may have lost its beginning."""
    live: dict[int, int] = {}
    waiting: dict[int, int] = {}
    events = []
    places = [[{**FRAME, 'line': line}] for line in range(3)]
    for time in range(draw(st.integers(0, 40))):
        action = draw(st.sampled_from(['alloc', 'alloc', 'free', 'complete', 'both']))
        frames = draw(st.sampled_from(places))
        if action == 'alloc':
            address = 512 * draw(st.integers(0, 7))
            if address not in live and address not in waiting:
                live[address] = draw(st.integers(1, 512))
                events.append(event('alloc', address, live[address], frames, time))
        elif action == 'complete' and waiting:
            address = draw(st.sampled_from(sorted(waiting)))
            events.append(event('free_completed', address, waiting.pop(address), frames, time))
        elif action in ('free', 'both') and live:
            address = draw(st.sampled_from(sorted(live)))
            events.append(event('free_requested', address, live[address], frames, time))
            if action == 'both':
                events.append(event('free_completed', address, live.pop(address), frames, time))
            else:
                waiting[address] = live.pop(address)
    segments = []
    for address in sorted({*live, *waiting}):
        size = {**live, **waiting}[address]
        block = {'address': address, 'size': 512, 'requested_size': size, 'frames': places[0]}
        block['state'] = 'active_allocated' if address in live else 'active_awaiting_free'
        segments.append({'device': 0, 'address': address, 'total_size': 512, 'blocks': [block]})
    return plain(*events[draw(st.integers(0, 20)) :], segments=segments)


def by_walking(snapshot: Snapshot) -> tuple[list[int], list[int]]:
    """Bytes allocated and active over time, computed block by block: slow and simple."""
    history = snapshot.devices[0]
    events = list(zip(history.action.tolist(), history.address.tolist(), history.size.tolist()))
    ends = dict(
        zip(history.blocks.address.tolist(), zip(history.blocks.size.tolist(), history.blocks.awaiting.tolist()))
    )
    blocks = []  # start, freed, completed, size
    requests = any(action == FREE_REQUESTED for action, _, _ in events)
    for address in sorted({*(address for _, address, _ in events), *ends}):
        current: list[int] | None = None
        here = [(number, action, size) for number, (action, at, size) in enumerate(events) if at == address]
        for number, action, size in here:
            if action == ALLOC:
                current = [number, len(events), len(events), size]
                blocks.append(current)
                continue
            if current is None:
                current = [-1, len(events), len(events), size]
                blocks.append(current)
                if action == FREE_COMPLETED and requests:
                    current[1] = -1  # its owner freed it before the recording
            if action == FREE_REQUESTED:
                current[1] = number
            elif action == FREE_COMPLETED:
                current[1], current[2] = min(current[1], number), number
        if address in ends and current is None:
            current = [-1, -1 if ends[address][1] else len(events), len(events), 0]
            blocks.append(current)
        if address in ends:
            assert current is not None
            current[3] = ends[address][0]
    moments = range(len(events) + 1)
    return (
        [sum(size for start, freed, _, size in blocks if start < count <= freed) for count in moments],
        [sum(size for start, _, done, size in blocks if start < count <= done) for count in moments],
    )


@settings(max_examples=300, deadline=None)
@given(content=histories())
def test_bytes_over_time_are_those_of_a_walk_over_the_events(content: dict[str, Any]) -> None:
    snapshot = load_snapshot(saved(content))
    if not snapshot.devices:
        return
    blocks = lifetimes(snapshot.devices[0])
    allocated, active = by_walking(snapshot)
    assert blocks.allocated().tolist() == allocated
    assert blocks.active().tolist() == active
    (found,) = report_on(snapshot).devices
    peak = found.peak
    assert (peak.bytes, peak.event) == (max(allocated), allocated.index(max(allocated)))
    assert found.active_peak == max(active)
    for parts in (peak.holders, peak.categories, peak.modules):
        assert sum(part.bytes for part in parts) == peak.bytes
    for share in peak.categories:
        assert sum(rule.bytes for rule in share.rules) == share.bytes
    assert sum(holder.bytes for holder in peak.holders if holder.before) == peak.allocated_before
    assert peak.requested <= peak.bytes
