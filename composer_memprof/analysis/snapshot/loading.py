"""Reading a memory snapshot, of any torch from 2.1 on, from a file that is not trusted.

What :mod:`.plain_pickle` lets through is turned into columns, each value checked, and the millions of dicts that it
was are let go.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from composer_memprof.analysis.snapshot.columns import (
    mappings,
    printable,
    rows_of,
    shown,
    sizes,
    texts,
    values_of,
    whole,
    whole_numbers,
)
from composer_memprof.analysis.snapshot.model import (
    ACTIONS,
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    OOM,
    TENSOR_CATEGORIES,
    Blocks,
    DeviceHistory,
    Frame,
    Meta,
    OutOfMemory,
    Phases,
    Segments,
    Snapshot,
    Stack,
    Tensors,
)
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError, load_plain, no_collection

__all__ = [
    'ACTIONS',
    'ALLOC',
    'FREE_COMPLETED',
    'FREE_REQUESTED',
    'Blocks',
    'DeviceHistory',
    'Frame',
    'Phases',
    'Segments',
    'Snapshot',
    'SnapshotError',
    'Stack',
    'Tensors',
    'load_snapshot',
    'read_snapshot',
]

_CODES = {action: code for code, action in enumerate(ACTIONS)}
#: Of a block's state, whether its owner has freed it already.
_AWAITING = {'active_allocated': False, 'active_awaiting_free': True, 'active_pending_free': True}
_NO_FRAMES: list[Any] = []
_MOST_DEVICES = 4096
_MOST_ALIKE = 4
_PLAIN = {str, int, type(None)}


def load_snapshot(path: Path) -> Snapshot:
    """Read a snapshot, gzipped or not.

    Raises:
        SnapshotError: if the file is not a whole snapshot; nothing in it is executed.
        OSError: if it can't be read.
    """
    try:
        with no_collection():
            return read_snapshot(load_plain(path))
    except SnapshotError as error:
        raise SnapshotError(f'{printable(str(path))} is no memory snapshot: {error}') from None
    except MemoryError:
        raise SnapshotError(f'{printable(str(path))} needs more memory than there is') from None


class _Stacks:
    """Gives each stack an index; frames and lists of them that the pickle shares are read once."""

    def __init__(self) -> None:
        self.stacks: list[Stack] = [()]
        self._by_stack: dict[Stack, int] = {(): 0}
        self._frames: dict[int, Frame] = {}
        # torch writes a list for each event, of frames that it shares: most are told by a few of them, and by being
        # equal to one that was read. Where too many are alike, all their frames tell.
        self._alike: dict[tuple[int, ...], list[tuple[list[Any], int]]] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}

    def indices(self, lists: list[Any]) -> np.ndarray:
        """The index of each list of frames. The lists have to stay alive while others are read: they count by id."""
        if not set(map(type, lists)) <= {list}:
            raise SnapshotError('a stack is no list of frames')
        index: dict[int, Any] = {id(frames): frames for frames in lists}
        for key, frames in index.items():
            index[key] = self._index(frames)
        return np.fromiter(map(index.__getitem__, map(id, lists)), np.int32, len(lists))

    def _index(self, frames: list[Any]) -> int:
        if not frames:
            return 0
        count = len(frames)
        few = (count, id(frames[0]), id(frames[count // 2]), id(frames[-1]))
        alike = self._alike.get(few)
        if alike is None:
            alike = self._alike[few] = []
        for known, index in alike:
            if known == frames:
                return index
        if len(alike) < _MOST_ALIKE:
            index = self._new(frames)
            alike.append((frames, index))
            return index
        key = tuple(map(id, frames))
        found = self._by_frames.get(key)
        if found is None:
            found = self._by_frames[key] = self._new(frames)
        return found

    def _new(self, frames: list[Any]) -> int:
        stack = tuple(map(self._frame, frames))
        index = self._by_stack.setdefault(stack, len(self.stacks))
        if index == len(self.stacks):
            self.stacks.append(stack)
        return index

    def _frame(self, frame: Any) -> Frame:
        known = self._frames.get(id(frame))
        if known is None:
            if type(frame) is not dict or not set(map(type, frame.values())) <= _PLAIN:
                raise SnapshotError('a frame is no mapping of text and numbers')
            filename, name = texts((frame.get('filename', '?'), frame.get('name', '?')), 'frames')
            known = self._frames[id(frame)] = Frame(filename, whole(frame, 'line', 0, smallest=-1), name)
        return known


class _Names:
    """Gives each text an index; 0 is ``''``."""

    def __init__(self) -> None:
        self.names = ['']
        self._by_name = {'': 0, None: 0}

    def index(self, name: Any) -> int:
        known = self._by_name.get(name) if type(name) is str or name is None else self._refuse(name)
        if known is None:
            known = self._by_name[name] = len(self.names)
            self.names.append(printable(name))
        return known

    def _refuse(self, name: Any) -> int:
        raise SnapshotError(f'{shown(name)} is no name of a module')


def read_snapshot(snapshot: Any) -> Snapshot:
    """Turn what a pickle held, or ``torch.cuda.memory._snapshot()`` gave, into columns.

    Raises:
        SnapshotError: if it is not a whole snapshot.
    """
    if type(snapshot) is not dict:
        raise SnapshotError(f'it holds {shown(snapshot)}')
    traces, segments = snapshot.get('device_traces'), snapshot.get('segments')
    if type(traces) is not list or type(segments) is not list:
        raise SnapshotError('it has no device_traces and segments')
    ours = snapshot.get('composer_memprof', {})
    if type(ours) is not dict:
        raise SnapshotError('its composer_memprof is no mapping')
    stacks, modules = _Stacks(), _Names()
    module_times, module_names = _modules(ours, modules)
    rows: dict[int, list[dict[str, Any]]] = {}
    for segment in mappings(segments, 'segment'):
        rows.setdefault(whole(segment, 'device', 0), []).append(segment)
    if len(traces) > _MOST_DEVICES:
        raise SnapshotError(f'it tells of {len(traces)} devices')
    histories = []
    for device in sorted({*range(len(traces)), *rows}):
        trace = mappings(traces[device], 'event') if device < len(traces) else []
        columns = _events(trace, stacks, modules)
        if len(module_times) and len(columns['action']):
            place = np.searchsorted(module_times, columns['time_us'], side='right') - 1
            known = np.where(place >= 0, module_names[np.maximum(place, 0)], 0)
            columns['module'] = np.where(columns['module'] > 0, columns['module'], known).astype(np.int32)
        blocks, held = _segments(rows.get(device, []), stacks)
        history = DeviceHistory(
            device=device, blocks=blocks, segments=held, reserved=int(held.total_size.sum()), **columns
        )
        if len(history.action) or len(history.blocks):
            histories.append(history)
    return Snapshot(
        devices=histories,
        stacks=stacks.stacks,
        modules=modules.names,
        phases=_phases(ours),
        tensors=_tensors(ours),
        oom=_oom(ours.get('oom')),
        error=_text(ours, 'error'),
        meta=_meta(ours),
    )


def _events(trace: list[dict[str, Any]], stacks: _Stacks, modules: _Names) -> dict[str, np.ndarray]:
    count = len(trace)
    actions = values_of(trace, 'action')
    try:
        action = np.fromiter(map(_CODES.__getitem__, actions), np.int8, count)
    except (KeyError, TypeError):
        unknown = next(name for name in actions if type(name) is not str or name not in _CODES)
        raise SnapshotError(f'its history has an unknown action {shown(unknown)}') from None
    del actions
    addresses = values_of(trace, 'addr', 0)
    if OOM in action:  # it has the device's free bytes in the place of an address
        addresses = [event.get('addr', event.get('device_free', 0)) for event in trace]
    columns: dict[str, np.ndarray] = {
        'action': action,
        'address': whole_numbers(addresses, 'addr').astype(np.uint64),
        'size': sizes(values_of(trace, 'size', 0), 'size'),
        'time_us': whole_numbers(values_of(trace, 'time_us', -1), 'time_us', smallest=-1),
        'stack': stacks.indices(values_of(trace, 'frames', _NO_FRAMES)),
    }
    named = [event.get('module') for event in trace]
    names = {name: modules.index(name) for name in _distinct(named)}
    columns['module'] = np.fromiter(map(names.__getitem__, named), np.int32, count)
    return columns


def _distinct(names: list[Any]) -> set[Any]:
    if not set(map(type, names)) <= {str, type(None)}:
        raise SnapshotError('an event names a module that is no text')
    return set(names)


def _segments(rows: list[dict[str, Any]], stacks: _Stacks) -> tuple[Blocks, Segments]:
    blocks: list[tuple[int, int, int, bool]] = []
    frames: list[Any] = []
    pools: dict[str, int] = {}
    codes = []
    for segment in rows:
        address = whole(segment, 'address')
        for block in mappings(segment.get('blocks'), 'block'):
            size = whole(block, 'size')
            place = whole(block, 'address', address)  # older formats give sizes alone, one block after the other
            address = place + size
            state = block.get('state')
            if type(state) is str and state in _AWAITING:
                blocks.append((place, size, whole(block, 'requested_size', size), _AWAITING[state]))
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


def _modules(ours: dict[str, Any], modules: _Names) -> tuple[np.ndarray, np.ndarray]:
    rows = rows_of(ours.get('modules'), 'modules', 2)
    times = _ascending([row[0] for row in rows], 'modules')
    return times, np.fromiter((modules.index(row[1]) for row in rows), np.int32, len(rows))


def _phases(ours: dict[str, Any]) -> Phases:
    rows = rows_of(ours.get('phases'), 'phases', 3)
    names = texts((row[2] for row in rows), 'phases')
    known = list(dict.fromkeys(names))
    codes = {name: code for code, name in enumerate(known)}
    return Phases(
        time_us=_ascending([row[0] for row in rows], 'phases'),
        batch=whole_numbers([row[1] for row in rows], 'batch', smallest=-1),
        name=np.fromiter((codes[name] for name in names), np.int64, len(names)),
        names=known,
    )


def _ascending(values: list[Any], what: str) -> np.ndarray:
    times = whole_numbers(values, 'time_us', smallest=-1)
    if len(times) and bool(np.any(np.diff(times) < 0)):
        raise SnapshotError(f'its {what} are not in order of time')
    return times


def _tensors(ours: dict[str, Any]) -> Tensors:
    rows = rows_of(ours.get('tensors'), 'tensors', 5)
    categories = [row[3] for row in rows]
    for category in categories:
        if type(category) is not str or category not in TENSOR_CATEGORIES:
            raise SnapshotError(f'a tensor has an unknown category {shown(category)}')
    names = _Names()
    return Tensors(
        time_us=whole_numbers([row[0] for row in rows], 'time_us', smallest=-1),
        address=whole_numbers([row[1] for row in rows], 'address').astype(np.uint64),
        size=sizes([row[2] for row in rows], 'bytes'),
        category=np.array([TENSOR_CATEGORIES.index(category) for category in categories], dtype=np.int8),
        name=np.fromiter((names.index(row[4]) for row in rows), np.int32, len(rows)),
        names=names.names,
    )


def _oom(value: Any) -> OutOfMemory | None:
    if value is None:
        return None
    if type(value) is not dict:
        raise SnapshotError('its oom is no mapping')
    numbers = {
        key: None if value.get(key) is None else whole(value, key)
        for key in ('device', 'requested', 'allocated', 'reserved', 'free', 'total')
    }
    return OutOfMemory(**numbers, message=_text(value, 'message') or None)


def _meta(ours: dict[str, Any]) -> Meta:
    rank = None if ours.get('rank') is None else whole(ours, 'rank')
    return Meta(_text(ours, 'device'), _text(ours, 'torch'), _text(ours, 'recorder'), rank)


def _text(values: dict[str, Any], key: str) -> str:
    text = values.get(key)
    if text is None:
        return ''
    if type(text) is not str:
        raise SnapshotError(f'its {key} is no text')
    return printable(' '.join(text.split()))[:2000]
