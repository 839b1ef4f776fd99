"""Reading a memory snapshot of any torch from 2.1 on, from a file that is not trusted.

The millions of dicts that the pickle holds are checked, turned into columns and dropped.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from itertools import repeat
from pathlib import Path
from typing import Any, Union

import numpy as np

from composer_memprof.analysis.snapshot.annotations import read_annotations
from composer_memprof.analysis.snapshot.model import ACTIONS, OOM, Blocks, DeviceHistory, Segments, Snapshot
from composer_memprof.analysis.snapshot.notes import Notes, read_notes
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError, load_plain
from composer_memprof.analysis.snapshot.stacks import StackIndex
from composer_memprof.analysis.snapshot.untrusted import (
    Names,
    mappings,
    shown,
    sizes,
    values_of,
    whole,
    whole_numbers,
)
from composer_memprof.garbage import no_collection
from composer_memprof.messages import printable

__all__ = ['SnapshotError', 'load_snapshot', 'read_snapshot']

_CODES = {action: code for code, action in enumerate(ACTIONS)}
#: An action of torch's that marks a moment and tells nothing about memory.
_MARK = 'user_defined'
#: For each state of a block in use: whether its owner has freed it.
_AWAITING = {'active_allocated': False, 'active_awaiting_free': True, 'active_pending_free': True}
_NO_FRAMES: list[Any] = []
_MOST_DEVICES = 4096
_LONGEST_SETTING = 200


def load_snapshot(path: Union[str, Path], limit_memory: bool = False) -> Snapshot:
    """Read a memory snapshot as columns. Nothing in the file is executed.

    >>> import pickle, tempfile
    >>> from composer_memprof import load_snapshot
    >>> event = {'action': 'alloc', 'addr': 4096, 'size': 512, 'time_us': 7}
    >>> with tempfile.NamedTemporaryFile(suffix='.pickle') as file:
    ...     pickle.dump({'device_traces': [[event]], 'segments': []}, file)
    ...     file.flush()
    ...     snapshot = load_snapshot(file.name)
    >>> [(device.device, int(device.size.sum())) for device in snapshot.devices]
    [(0, 512)]

    Args:
        path (str | Path): a file of MemorySnapshot, compressed or not, or of torch's ``_dump_snapshot``.
        limit_memory (bool): limit the memory of this process while it reads, all threads included. Otherwise a
            malicious file of a few bytes can use up the machine's memory. Default: ``False``.

    Raises:
        SnapshotError: if the file is not a complete snapshot. It is a ``ValueError``.
        OSError: if the file can't be read.
    """
    try:
        with no_collection():  # it runs often while millions of objects are made, and finds nothing in them
            return read_snapshot(load_plain(Path(path), limit_memory))
    except SnapshotError as error:
        raise SnapshotError(f'{printable(str(path))} is not a memory snapshot: {error}') from None
    except MemoryError:
        raise SnapshotError(f'{printable(str(path))} needs more memory than is free') from None


def read_snapshot(snapshot: Any) -> Snapshot:
    """Turn an unpickled snapshot, or one of a recorder, into columns.

    Raises:
        SnapshotError: if it is not a complete snapshot.
    """
    if type(snapshot) is not dict:
        raise SnapshotError(f'it holds {shown(snapshot)}')
    traces, segments = snapshot.get('device_traces'), snapshot.get('segments')
    if type(traces) is not list or type(segments) is not list:
        raise SnapshotError('it has no device_traces and segments')
    if len(traces) > _MOST_DEVICES:
        raise SnapshotError(f'it has {len(traces)} devices')
    stacks, modules = StackIndex(), Names('module')
    notes = read_notes(snapshot, modules)
    annotations = read_annotations(snapshot)
    ignored: Counter[str] = Counter()
    segments_of: dict[int, list[dict[str, Any]]] = {}
    for segment in mappings(segments, 'segment'):
        segments_of.setdefault(whole(segment, 'device', 0), []).append(segment)
    histories = []
    for device in sorted({*range(len(traces)), *segments_of}):
        trace = mappings(traces[device], 'event') if device < len(traces) else []
        columns = _events(*_of_known_action(trace, ignored), stacks, modules)
        columns['module'] = _modules_of(columns, notes, stacks, modules)
        blocks, reserved = _segments(segments_of.get(device, []), stacks)
        history = DeviceHistory(
            device=device, blocks=blocks, segments=reserved, reserved=int(reserved.total_size.sum()), **columns
        )
        if len(history.action) or len(history.blocks):
            histories.append(history)
    return Snapshot(
        devices=histories,
        stacks=stacks.stacks,
        modules=modules.names,
        phases=notes.phases,
        tensors=notes.tensors,
        oom=notes.oom,
        error=notes.error,
        meta=notes.meta,
        notes_version=notes.version,
        ignored=dict(ignored),
        rss_peak=notes.rss_peak,
        known_before=notes.known_before,
        max_entries=notes.max_entries,
        memory=notes.memory,
        keepers=notes.keepers,
        sources=notes.sources,
        precision=notes.precision,
        evaluation_graph=notes.evaluation_graph,
        whole=notes.whole,
        beside=notes.beside,
        copies=notes.copies,
        unused_gradients=notes.unused_gradients,
        without_gradient=notes.without_gradient,
        settings=_settings(snapshot.get('allocator_settings')),
        annotations=annotations if len(annotations) else None,
    )


def _modules_of(columns: dict[str, np.ndarray], notes: Notes, stacks: StackIndex, modules: Names) -> np.ndarray:
    """The module of each event: its own, else the one that ran, else, if none was noted, that of its stack's code."""
    if len(notes.modules.time_us):
        running = notes.modules.at(columns['time_us'])
    else:
        running = notes.code.modules_of(stacks.stacks, modules)[columns['stack']]
    return np.where(columns['module'] > 0, columns['module'], running)


def _settings(values: Any) -> dict[str, str]:
    """The allocator's settings as text. Those that are mappings, and what newer versions may add, are left out."""
    if type(values) is not dict:
        return {}
    plain = {
        name: value for name, value in values.items() if type(name) is str and type(value) in (bool, int, float, str)
    }
    return {printable(name[:40]): printable(str(value)[:_LONGEST_SETTING]) for name, value in plain.items()}


def _of_known_action(trace: list[dict[str, Any]], ignored: Counter[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The events whose action is known here, and their actions.

    Events of other actions, which a newer torch may write, are counted by name.
    """
    actions = values_of(trace, 'action')
    distinct = _distinct_texts(actions)
    unknown = distinct - _CODES.keys()
    if not unknown:
        return trace, actions
    ignored.update(shown(name) for name in actions if name in unknown and name != _MARK)
    known = [event for event, name in zip(trace, actions) if name not in unknown]
    return known, [name for name in actions if name not in unknown]


def _distinct_texts(actions: list[Any]) -> set[str]:
    with contextlib.suppress(TypeError):  # a container can't be in a set
        distinct = set(actions)
        if set(map(type, distinct)) <= {str}:
            return distinct
    wrong = next(name for name in actions if type(name) is not str)
    raise SnapshotError(f'the action of an event must be text, not {shown(wrong)}')


def _events(
    trace: list[dict[str, Any]], actions: list[str], stacks: StackIndex, modules: Names
) -> dict[str, np.ndarray]:
    action = np.fromiter(map(_CODES.__getitem__, actions), np.int8, len(actions))
    addresses = values_of(trace, 'addr', 0)
    if OOM in action:  # such an event has the device's free bytes instead of an address
        addresses = [event.get('addr', event.get('device_free', 0)) for event in trace]
    return {
        'action': action,
        'address': whole_numbers(addresses, 'addr').astype(np.uint64),
        'size': sizes(values_of(trace, 'size', 0), 'size'),
        'time_us': whole_numbers(values_of(trace, 'time_us', -1), 'time_us', smallest=-1),
        'stack': stacks.indices(values_of(trace, 'frames', _NO_FRAMES)),
        'module': _own_modules(trace, modules),
    }


def _own_modules(trace: list[dict[str, Any]], modules: Names) -> np.ndarray:
    """The module that each event names, as no event of torch does."""
    if not any(map(dict.__contains__, trace, repeat('module'))):
        return np.zeros(len(trace), np.int32)
    return modules.indices([event.get('module') for event in trace])


def _segments(rows: list[dict[str, Any]], stacks: StackIndex) -> tuple[Blocks, Segments]:
    blocks: list[tuple[int, int, int, bool]] = []
    frames: list[Any] = []
    pools: dict[str, int] = {}
    codes = []
    for segment in rows:
        address = whole(segment, 'address')
        for block in mappings(segment.get('blocks'), 'block'):
            size = whole(block, 'size')
            begin = whole(block, 'address', address)  # older formats give no addresses: the blocks are in order
            address = begin + size
            state = block.get('state')
            if type(state) is str and state in _AWAITING:
                blocks.append((begin, size, whole(block, 'requested_size', size), _AWAITING[state]))
                frames.append(_frames_of(block))
        codes.append(pools.setdefault(_pool(segment), len(pools)))
    columns = [list(column) for column in zip(*blocks)] if blocks else [[], [], [], []]
    return Blocks(
        address=whole_numbers(columns[0], 'address').astype(np.uint64),
        size=sizes(columns[1], 'size'),
        requested=sizes(columns[2], 'requested_size'),
        stack=stacks.indices(frames),
        awaiting=np.array(columns[3], dtype=bool),
    ), Segments(
        address=whole_numbers(values_of(rows, 'address'), 'address').astype(np.uint64),
        total_size=sizes(values_of(rows, 'total_size'), 'total_size'),
        allocated=sizes([row.get('allocated_size', 0) for row in rows], 'allocated_size'),
        active=sizes([row.get('active_size', 0) for row in rows], 'active_size'),
        stream=whole_numbers([row.get('stream', 0) for row in rows], 'stream', smallest=-(2**63)),
        pool=np.array(codes, dtype=np.int32),
        expandable=np.array([row.get('is_expandable') is True for row in rows], dtype=bool),
        pools=list(pools),
    )


def _frames_of(block: dict[str, Any]) -> Any:
    if 'frames' in block:
        return block['frames']
    history = block.get('history')  # torch 2.1
    if type(history) is list and history and type(history[0]) is dict:
        return history[0].get('frames', _NO_FRAMES)
    return _NO_FRAMES


def _pool(segment: dict[str, Any]) -> str:
    kind = printable(str(segment['segment_type'])[:20]) if type(segment.get('segment_type')) is str else ''
    private = segment.get('segment_pool_id')
    if type(private) is tuple and set(map(type, private)) <= {int} and any(private) and len(private) <= 2:
        return f'{kind} of pool ({", ".join(map(shown, private))})'.strip()
    return kind
