"""The report on a snapshot, as plain data: ``inspect`` prints it, ``diff`` compares two, the summary shortens it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.blocks.lifetimes import lifetimes
from composer_memprof.analysis.memory.blocks.phases import peak_by_phase
from composer_memprof.analysis.memory.blocks.time_span import TimeSpan, check_span, moments_within
from composer_memprof.analysis.memory.categories.categories import categories
from composer_memprof.analysis.memory.findings.attribution import Attribution, CategoryPeak, attribute
from composer_memprof.analysis.memory.findings.batch_peaks import BatchPeak, batch_peaks
from composer_memprof.analysis.memory.findings.failure import (
    OutOfMemoryEvent,
    ended_out_of_memory,
    failure_moment,
    out_of_memory_events,
    out_of_memory_moments,
)
from composer_memprof.analysis.memory.findings.fragmentation import (
    Fragmentation,
    Pool,
    fragmentation,
    is_caching,
    pools,
    reserved_over_time,
)
from composer_memprof.analysis.memory.findings.graphs_of_no_use import GraphOfNoUse, graphs_of_no_use
from composer_memprof.analysis.memory.findings.growth import Growth, growth
from composer_memprof.analysis.memory.findings.peak import Peak, peak_of
from composer_memprof.analysis.memory.findings.repeated_calls import RepeatedCall, repeated_call
from composer_memprof.analysis.snapshot.model import DeviceHistory, Meta, Snapshot
from composer_memprof.recorders.allocations.notes import VERSION

#: Most unknown actions that a note names.
_NAMED = 5


@dataclass(frozen=True)
class DeviceReport:
    """The report on one device, sizes in bytes.

    Without a caching allocator, as on a CPU, the optional values are None.

    Args:
        device (int): its index.
        peak (Peak): the most that was allocated, in the report's span.
        active_peak (int): the most that was active, in the report's span.
        allocated_at_start (int): allocated before the first event.
        allocated_at_end (int): allocated after the last event.
        reserved_peak (int, optional): the most that was reserved, in the report's span.
        reserved_at_end (int, optional): reserved after the last event.
        requested_at_end (int): sum of the blocks at the end, as requested.
        rounded_at_end (int): sum of the blocks at the end, as the allocator rounded them up.
        fragmentation (Fragmentation, optional): at the peak.
        pools (list[Pool]): the segments at the end.
        growth (Growth): from batch to batch, and what was left.
        at_failure (Peak, optional): what was allocated when the training failed: before the last ``oom`` event, else at
            the end of the recording. None if nothing failed.
        at_failures (list[Peak]): what was allocated before each ``oom`` event, oldest first.
        rss_peak (int, optional): on a CPU, the most resident memory of the process at the start of a phase.
        memory (int, optional): of the device; None if it is not known.
        repeated (RepeatedCall, optional): the call whose checkpointing would free most of the peak.
        category_peaks (list[CategoryPeak]): the most that each category had, in the report's span, largest first.
        phase_peaks (dict[str, int]): the most that was allocated in each phase, in the report's span; empty if the phases
            are not known.
        batches (list[BatchPeak]): the last batches of the recording; empty if none is known.
        of_no_use (list[GraphOfNoUse]): when the training failed, the activations of modules that no gradient reaches.
    """

    device: int
    peak: Peak
    active_peak: int
    allocated_at_start: int
    allocated_at_end: int
    reserved_peak: Optional[int]
    reserved_at_end: Optional[int]
    requested_at_end: int
    rounded_at_end: int
    fragmentation: Optional[Fragmentation]
    pools: list[Pool]
    growth: Growth
    at_failure: Optional[Peak] = None
    rss_peak: Optional[int] = None
    at_failures: list[Peak] = field(default_factory=list)
    memory: Optional[int] = None
    repeated: Optional[RepeatedCall] = None
    category_peaks: list[CategoryPeak] = field(default_factory=list)
    phase_peaks: dict[str, int] = field(default_factory=dict)
    batches: list[BatchPeak] = field(default_factory=list)
    of_no_use: list[GraphOfNoUse] = field(default_factory=list)


@dataclass(frozen=True)
class SnapshotReport:
    """The report on a snapshot.

    Args:
        meta (Meta): its origin.
        error (str): the error that it was taken for, or ``''``.
        oom (OutOfMemoryEvent, optional): the last allocation that failed, if one did.
        devices (list[DeviceReport]): by index.
        notes (list[str]): sentences about figures that the snapshot can't show, and why.
        ooms (list[OutOfMemoryEvent]): every allocation that failed, oldest first.
        settings (dict[str, str]): the allocator's, as torch noted them.
        ended_out_of_memory (bool): True if the last of ``ooms`` is the failure that the snapshot was taken for.
        span (TimeSpan, optional): the part of the recording in which the peak was looked for; None for all of it.
        sources (dict[str, str]): the text of lines that allocate, by ``file:line``.
        precision (str): in which the training computes, such as ``'amp_bf16'``; ``''`` if that is not known.
        evaluation_graph (str, optional): the first module of an evaluation that recorded a graph for backward; None if none did.
        whole (dict[str, int]): bytes of parameters that FSDP left whole, by module, largest first.
        beside (dict[str, int]): bytes of tensors from before that are no part of the model, by what keeps them, largest first.
        unused_gradients (dict[str, int]): bytes of gradients that no optimizer uses, by module.
        copies (dict[str, int]): bytes of the model's parts that are copies of the rest and are not trained, by module.
    """

    meta: Meta
    error: str
    oom: Optional[OutOfMemoryEvent]
    devices: list[DeviceReport]
    notes: list[str]
    ooms: list[OutOfMemoryEvent] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    ended_out_of_memory: bool = False
    span: Optional[TimeSpan] = None
    sources: dict[str, str] = field(default_factory=dict)
    precision: str = ''
    evaluation_graph: Optional[str] = None
    whole: dict[str, int] = field(default_factory=dict)
    beside: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    unused_gradients: dict[str, int] = field(default_factory=dict)

    @property
    def largest_device(self) -> Optional[DeviceReport]:
        """The device with the largest peak; None if nothing was recorded."""
        return max(self.devices, key=lambda device: device.peak.bytes, default=None)


def report_on(snapshot: Snapshot, span: Optional[TimeSpan] = None) -> SnapshotReport:
    """Analyze a snapshot.

    Args:
        snapshot (Snapshot): the snapshot.
        span (TimeSpan, optional): look for the peak in this part of the recording. Default: in all of it.

    Raises:
        SnapshotError: if ``span`` is not within the recording, or the recording has no times.
    """
    if span is not None:
        check_span(snapshot.devices, span)
    devices, totals = [], []
    for history in snapshot.devices:
        blocks = lifetimes(history)
        attribution = attribute(snapshot, blocks, categories(snapshot, history, blocks))
        allocated = blocks.allocated()
        reserved = reserved_over_time(history) if is_caching(snapshot, history) else None
        devices.append(_device(snapshot, history, attribution, allocated, reserved, span))
        totals.append((allocated, reserved))
    ooms = out_of_memory_events(snapshot, totals)
    return SnapshotReport(
        meta=snapshot.meta,
        error=snapshot.error,
        oom=ooms[-1] if ooms else None,
        devices=devices,
        notes=notes_of(snapshot),
        ooms=ooms,
        settings=snapshot.settings,
        ended_out_of_memory=ended_out_of_memory(snapshot),
        span=span,
        sources=snapshot.sources,
        precision=snapshot.precision,
        evaluation_graph=snapshot.evaluation_graph,
        whole=snapshot.whole,
        beside=snapshot.beside,
        copies=snapshot.copies,
        unused_gradients=snapshot.unused_gradients,
    )


def _device(
    snapshot: Snapshot,
    history: DeviceHistory,
    attribution: Attribution,
    allocated: np.ndarray,
    reserved: Optional[np.ndarray],
    span: Optional[TimeSpan],
) -> DeviceReport:
    within = slice(None) if span is None else moments_within(history, span)
    count = (within.start or 0) + int(allocated[within].argmax())  # the first of equal ones
    blocks = attribution.blocks
    active, failed = blocks.active(), failure_moment(snapshot, history)
    return DeviceReport(
        device=history.device,
        peak=peak_of(snapshot, history, attribution, count),
        active_peak=int(active[within].max()),
        allocated_at_start=int(allocated[0]),
        allocated_at_end=int(allocated[-1]),
        reserved_peak=None if reserved is None else int(reserved[within].max()),
        reserved_at_end=None if reserved is None else int(reserved[-1]),
        requested_at_end=int(history.blocks.requested.sum()),
        rounded_at_end=int(history.blocks.size.sum()),
        fragmentation=None if reserved is None else fragmentation(history, attribution, count, reserved, active),
        pools=[] if reserved is None else pools(history),
        growth=growth(snapshot, history, attribution),
        at_failure=None if failed is None else peak_of(snapshot, history, attribution, failed),
        rss_peak=snapshot.rss_peak,
        memory=snapshot.memory[history.device] if history.device < len(snapshot.memory) else None,
        repeated=repeated_call(snapshot, attribution, blocks.allocated_after(count)),
        at_failures=[
            peak_of(snapshot, history, attribution, moment) for moment in out_of_memory_moments(history).tolist()
        ],
        category_peaks=attribution.category_peaks(within),
        phase_peaks=peak_by_phase(history, snapshot.phases, allocated, within),
        batches=batch_peaks(history, snapshot.phases, snapshot.tensors, allocated),
        of_no_use=[] if failed is None else graphs_of_no_use(snapshot, attribution, blocks.allocated_after(failed)),
    )


def notes_of(snapshot: Snapshot) -> list[str]:
    """Sentences about figures that the snapshot can't show, and why."""
    notes = []
    if snapshot.meta.simulated:
        notes.append(
            f'simulated: {snapshot.meta.simulated}. No kernel has run; sizes are real, times and values are not.'
        )
    if snapshot.notes_version > VERSION:
        notes.append(
            f'A newer composer_memprof made this snapshot (version {snapshot.notes_version} of its notes, known here is '
            f'{VERSION}); some notes may be missing.'
        )
    notes += ignored_events(snapshot)
    if snapshot.devices and not len(snapshot.phases):
        notes.append(_without_phases(snapshot))
    if snapshot.meta.device == 'cpu':
        notes.append('A CPU has no caching allocator, so there is no reserved memory.')
        notes.append(
            'On a CPU, memory that was allocated before the recording is counted only if it was freed during it.'
            if snapshot.known_before is None
            else 'On a CPU, of the memory that was allocated before the recording only parameters, buffers, gradients, '
            'optimizer state, the batch and the last outputs are counted.'
        )
    if snapshot.max_entries is not None:
        notes += [
            f'The recording kept its last {snapshot.max_entries} events of device {history.device} (max_entries); of '
            'what came before, only blocks that outlived it are known.'
            for history in snapshot.devices
            if len(history.action) >= snapshot.max_entries
        ]
    return notes


def _without_phases(snapshot: Snapshot) -> str:
    more = '' if snapshot.annotations is None else " and torch's annotations"
    return (
        f'The recording has no phases of training: phases come from stacks{more}, categories from stacks and lifetimes '
        'only.'
    )


def ignored_events(snapshot: Snapshot) -> list[str]:
    """A sentence about the events that were left out; empty if there are none."""
    ignored = snapshot.ignored
    if not ignored:
        return []
    names = sorted(ignored, key=lambda name: -ignored[name])
    named = ', '.join(f'{ignored[name]} of {name}' for name in names[:_NAMED])
    more = f' and {len(names) - _NAMED} others' if len(names) > _NAMED else ''
    return [f'Events of an action that is not known here were ignored: {named}{more}.']
