"""A memory snapshot on the CPU, where torch has no allocator history: made from the profiler's allocation events.

It has the format of torch's CUDA snapshots, so that the same tools read it. Of memory that was allocated before the
recording it has what the caller knows of. It lacks memory that other libraries allocate. Each live block is a segment of
its own, since malloc reports no segments.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

import torch

from composer_memprof.recorders.allocations.notes import SnapshotNotes, with_notes
from composer_memprof.recorders.allocations.standing_blocks import StandingBlocks
from composer_memprof.recorders.kineto import KinetoResult
from composer_memprof.recorders.torch_private import profiler_events

#: The modules of ``torch_private`` that this one needs.
NEEDS = (profiler_events,)
#: The notes of every snapshot made here.
NOTES = SnapshotNotes(device='cpu', torch=str(torch.__version__), recorder='profiler')
#: The profiler's arguments that a session needs for :func:`snapshot_of`.
PROFILE_ARGUMENTS = {'profile_memory': True, 'with_stack': True}

Frame = dict[str, Any]


class _Call(NamedTuple):
    """A Python call that led to an allocation, linked to the call around it."""

    caller: Frame
    function: Optional[Frame]  # None for a C function, which has no frame
    outer: Optional[_Call]


class _Allocation(NamedTuple):
    time_ns: int
    address: int
    size: int  # negative for a free
    call: Optional[_Call]
    module: Optional[str]


def snapshot_of(
    result: KinetoResult,
    modules: Mapping[int, str] = MappingProxyType({}),
    standing: Optional[StandingBlocks] = None,
    max_entries: Optional[int] = None,
) -> dict[str, Any]:
    """The session's CPU allocations as a snapshot: ``device_traces``, ``segments`` and notes, sizes in bytes.

    Args:
        result (KinetoResult): of a session with :data:`PROFILE_ARGUMENTS`.
        modules (Mapping): dotted names of modules by their ``id``. An allocation in a module's forward gets its name.
        standing (StandingBlocks, optional): what was allocated before the session.
        max_entries (int, optional): events to keep; of more, the oldest are dropped, as the CUDA allocator does.
    """
    frames_of = _Frames()
    trace: list[dict[str, Any]] = []
    live: dict[int, tuple[int, list[Frame]]] = {}
    allocations = sorted(_allocations(result, modules), key=_time_of)
    if standing is not None:
        live, frees = _before_and_frees(standing, allocations)
        allocations = sorted([*frees, *allocations], key=_time_of)
    for allocation in allocations:
        frames = frames_of(allocation.call)
        size = abs(allocation.size)
        if allocation.size < 0 and allocation.address in live:
            # torch reports a free with the size of the last block that a session saw allocated there. That block may
            # have been freed between two sessions, and this one, of another size, allocated.
            size, _ = live[allocation.address]
        event = {'addr': allocation.address, 'size': size, 'stream': 0, 'frames': frames}
        event['time_us'] = allocation.time_ns // 1000
        if allocation.module is not None:
            event['module'] = allocation.module
        if allocation.size > 0:
            live[allocation.address] = (size, frames)
            trace.append({'action': 'alloc', **event})
        else:
            live.pop(allocation.address, None)
            trace.append({'action': 'free_requested', **event})
            trace.append({'action': 'free_completed', **event})
    snapshot = {
        'segments': [_segment(address, size, frames) for address, (size, frames) in sorted(live.items())],
        'device_traces': [trace if max_entries is None else trace[-max_entries:]],
        'allocator_settings': {},
        'external_annotations': [],
    }
    return with_notes(snapshot, NOTES)


def _before_and_frees(
    standing: StandingBlocks, allocations: Sequence[_Allocation]
) -> tuple[dict[int, tuple[int, list[Frame]]], list[_Allocation]]:
    """The blocks that stood before the session, and their frees as far as the profiler does not report them."""
    first: dict[int, _Allocation] = {}
    for allocation in allocations:
        first.setdefault(allocation.address, allocation)
    freed = {free.address: free.time_ns for free in standing.freed}
    blocks: dict[int, tuple[int, list[Frame]]] = {}
    frees = []
    for address, size in standing.blocks.items():
        blocks[address] = (size, [])
        next_there = first.get(address)
        if next_there is not None and next_there.size < 0:  # an earlier session had reported the allocation
            continue
        end = freed.get(address)
        if next_there is not None:
            end = min(next_there.time_ns, next_there.time_ns if end is None else end)
        if end is not None:
            frees.append(_Allocation(end, address, -size, None, None))
    return blocks, frees


def _time_of(allocation: _Allocation) -> int:
    return allocation.time_ns


def _segment(address: int, size: int, frames: list[Frame]) -> dict[str, Any]:
    block = {'address': address, 'size': size, 'requested_size': size, 'state': 'active_allocated', 'frames': frames}
    return {
        'device': 0,
        'address': address,
        'total_size': size,
        'allocated_size': size,
        'active_size': size,
        'requested_size': size,
        'stream': 0,
        'segment_type': 'large',
        'segment_pool_id': (0, 0),
        'is_expandable': False,
        'frames': [],
        'blocks': [block],
    }


def _allocations(result: KinetoResult, modules: Mapping[int, str]) -> Iterator[_Allocation]:
    """Walk the event tree without recursion, which is too slow for it and may be too deep."""
    types = profiler_events.EventType
    allocation, py_call, py_c_call = types.Allocation, types.PyCall, types.PyCCall
    pending: list[tuple[Any, Optional[_Call], Optional[str]]] = [(root, None, None) for root in result.events()]
    while pending:
        event, call, module = pending.pop()
        tag = event.tag
        if tag == allocation:
            fields = event.extra_fields
            if fields.device.type == 'cpu':
                yield _Allocation(event.start_time_ns, fields.ptr, fields.alloc_size, call, module)
        elif tag == py_call:
            fields = event.extra_fields
            call = _Call(_frame(fields.caller), _frame(fields.callsite), call)
            if fields.module is not None:
                module = modules.get(fields.module.self_ptr, module)
        elif tag == py_c_call:
            call = _Call(_frame(event.extra_fields.caller), None, call)
        pending.extend((child, call, module) for child in event.children)


def _frame(state: Any) -> Frame:
    # The names of code that was freed meanwhile, as a module's is after its import, are no text any more.
    try:
        return {'filename': _whole_path(state.file_name), 'line': state.line_number, 'name': state.function_name}
    except UnicodeDecodeError:
        return {'filename': '??', 'line': state.line_number, 'name': '??'}


@functools.cache
def _whole_path(name: str) -> str:
    """The absolute path. The profiler strips the ``sys.path`` folder, which shows whether code is the user's."""
    if os.path.isabs(name) or name.startswith('<'):
        return name
    return next((path for path in (os.path.join(folder, name) for folder in sys.path) if os.path.isfile(path)), name)


class _Frames:
    """Stacks, innermost frame first. Allocations of one call share a list, so that the pickle holds it once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[_Call, list[Frame]]] = {}

    def __call__(self, call: Optional[_Call]) -> list[Frame]:
        if call is None:
            return []
        known = self._known.get(id(call))
        if known is None:
            # The innermost function has the line of its definition, the others have the line of their call.
            frames = [call.function] if call.function is not None else []
            outer: Optional[_Call] = call
            while outer is not None:
                if not frames or frames[-1] != outer.caller:  # a C function and what it calls have the same caller
                    frames.append(outer.caller)
                outer = outer.outer
            known = self._known[id(call)] = (call, frames)
        return known[1]
