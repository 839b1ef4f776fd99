"""Reading a memory snapshot, of any torch from 2.1 on, from a file that is not trusted.

A snapshot is a pickle of plain dicts, lists, tuples, strings and numbers. One that names any class or function is
refused before it is looked up, so that nothing in it can run.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: All that torch's allocators write, in the order of their codes.
ACTIONS = (
    *('alloc', 'free_requested', 'free_completed', 'segment_alloc', 'segment_free', 'segment_map', 'segment_unmap'),
    *('snapshot', 'oom'),
)
ALLOC, FREE_COMPLETED = ACTIONS.index('alloc'), ACTIONS.index('free_completed')
_LARGEST = 2**63 - 1
_CODES = {action: code for code, action in enumerate(ACTIONS)}


class SnapshotError(ValueError):
    """A file that is no snapshot, or not a whole one. One line that says so."""


@dataclass(frozen=True)
class Frame:
    filename: str
    line: int
    name: str

    def __str__(self) -> str:
        return f'{self.filename}:{self.line} {self.name}'


Stack = tuple[Frame, ...]


@dataclass(frozen=True)
class Block:
    """Memory that is allocated at the end of the recording. ``size`` is rounded, ``requested`` is not; bytes."""

    address: int
    size: int
    requested: int
    stack: int


@dataclass(frozen=True)
class DeviceHistory:
    """One device's events as columns, oldest first, and what is left at the end.

    Args:
        device (int): its index.
        action (ndarray): int8, an index into ``ACTIONS``.
        address (ndarray): uint64.
        size (ndarray): int64, bytes as asked for.
        time_us (ndarray): int64; -1 where the format has no times.
        stack (ndarray): int32, an index into the snapshot's ``stacks``.
        blocks (list[Block]): allocated at the end.
        reserved (int): bytes held in segments at the end.
    """

    device: int
    action: np.ndarray
    address: np.ndarray
    size: np.ndarray
    time_us: np.ndarray
    stack: np.ndarray
    blocks: list[Block]
    reserved: int


@dataclass(frozen=True)
class Snapshot:
    """A snapshot's devices, and the stacks that their events and blocks name by index; 0 is the empty one."""

    devices: list[DeviceHistory]
    stacks: list[Stack]


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise SnapshotError(f'it names {module}.{name}; a snapshot has plain values only, and nothing of it was run')

    def persistent_load(self, pid: Any) -> Any:
        raise SnapshotError('it names objects outside of it; a snapshot has plain values only')


def load_snapshot(path: Path) -> Snapshot:
    """Read a snapshot, gzipped or not.

    Raises:
        SnapshotError: if the file is not a whole snapshot; nothing in it is executed.
        OSError: if it can't be read.
    """
    with open(path, 'rb') as raw:
        zipped = raw.read(2) == b'\x1f\x8b'
    try:
        with gzip.open(path, 'rb') if zipped else open(path, 'rb') as file:
            content = _PlainUnpickler(file).load()
        return _read(content)
    except SnapshotError as error:
        raise SnapshotError(f'{path} is no memory snapshot: {error}') from None
    except (OSError, MemoryError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise SnapshotError(f'{path} can not be read: {error}') from error
    except Exception as error:  # pickle raises whatever a broken stream leads it to
        reason = ' '.join(str(error).split()) or type(error).__name__
        raise SnapshotError(f'{path} is no memory snapshot, or cut short: {reason}') from error


class _Stacks:
    """Gives each stack an index; the same list of frames, as a pickle shares it, is read once."""

    def __init__(self) -> None:
        self.stacks: list[Stack] = [()]
        self._by_list: dict[int, tuple[object, int]] = {}
        self._by_stack: dict[Stack, int] = {(): 0}
        self._frames: dict[int, tuple[object, Frame]] = {}

    def index(self, frames: Any) -> int:
        known = self._by_list.get(id(frames))
        if known is not None:
            return known[1]
        if not isinstance(frames, list):
            raise SnapshotError('a stack is no list of frames')
        stack = tuple(self._frame(frame) for frame in frames)
        index = self._by_stack.setdefault(stack, len(self.stacks))
        if index == len(self.stacks):
            self.stacks.append(stack)
        self._by_list[id(frames)] = (frames, index)
        return index

    def _frame(self, frame: Any) -> Frame:
        known = self._frames.get(id(frame))
        if known is None:
            if not isinstance(frame, dict):
                raise SnapshotError('a frame is no mapping')
            made = Frame(str(frame.get('filename', '?')), _whole(frame, 'line', 0), str(frame.get('name', '?')))
            known = self._frames[id(frame)] = (frame, made)
        return known[1]


def _read(content: Any) -> Snapshot:
    if not isinstance(content, dict):
        raise SnapshotError(f'it holds a {type(content).__name__}')
    traces, segments = content.get('device_traces'), content.get('segments')
    if not isinstance(traces, list) or not isinstance(segments, list):
        raise SnapshotError('it has no device_traces and segments')
    stacks = _Stacks()
    blocks: dict[int, list[Block]] = {}
    reserved: dict[int, int] = {}
    for segment in _mappings(segments, 'segment'):
        device = _whole(segment, 'device', 0)
        reserved[device] = reserved.get(device, 0) + _whole(segment, 'total_size')
        blocks.setdefault(device, []).extend(_live_blocks(segment, stacks))
    devices = sorted({*range(len(traces)), *blocks})
    histories = [
        _history(
            device,
            traces[device] if device < len(traces) else [],
            stacks,
            blocks.get(device, []),
            reserved.get(device, 0),
        )
        for device in devices
    ]
    return Snapshot([history for history in histories if len(history.action) or history.blocks], stacks.stacks)


def _live_blocks(segment: dict[str, Any], stacks: _Stacks) -> Iterator[Block]:
    address = _whole(segment, 'address')
    for block in _mappings(segment.get('blocks'), 'block'):
        size = _whole(block, 'size')
        place = _whole(block, 'address', address)  # older formats give sizes alone, one block after the other
        address = place + size
        if block.get('state') in ('active_allocated', 'active_awaiting_free', 'active_pending_free'):
            yield Block(place, size, _whole(block, 'requested_size', size), stacks.index(_frames_of(block)))


def _frames_of(block: dict[str, Any]) -> Any:
    if 'frames' in block:
        return block['frames']
    history = block.get('history')  # torch 2.1
    if isinstance(history, list) and history and isinstance(history[0], dict):
        return history[0].get('frames', [])
    return []


def _history(device: int, trace: Any, stacks: _Stacks, blocks: list[Block], reserved: int) -> DeviceHistory:
    rows = []
    for event in _mappings(trace, 'event'):
        action = event.get('action')
        if not isinstance(action, str) or action not in _CODES:
            raise SnapshotError(f'its history has an unknown action {str(action)[:40]!r}')
        rows.append(
            (
                _CODES[action],
                _whole(event, 'addr', 0),
                _whole(event, 'size', 0),
                _whole(event, 'time_us', -1),
                stacks.index(event.get('frames', [])),
            )
        )
    columns = list(zip(*rows)) if rows else [()] * 5
    return DeviceHistory(
        device=device,
        action=np.array(columns[0], dtype=np.int8),
        address=np.array(columns[1], dtype=np.uint64),
        size=np.array(columns[2], dtype=np.int64),
        time_us=np.array(columns[3], dtype=np.int64),
        stack=np.array(columns[4], dtype=np.int32),
        blocks=blocks,
        reserved=reserved,
    )


def _mappings(values: Any, what: str) -> Iterator[dict[str, Any]]:
    if not isinstance(values, list):
        raise SnapshotError(f'it has no list of {what}s')
    for value in values:
        if not isinstance(value, dict):
            raise SnapshotError(f'a {what} is no mapping')
        yield value


def _whole(values: dict[str, Any], key: str, default: int | None = None) -> int:
    value = values.get(key, default)
    if type(value) is not int or not -1 <= value <= _LARGEST:
        raise SnapshotError(f'{key}={str(value)[:40]} is not a number that it can be')
    return value
