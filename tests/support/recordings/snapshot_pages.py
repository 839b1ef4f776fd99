"""Snapshots whose pages are tested."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.analysis.snapshot.model import Snapshot

MIB = 1 << 20
TORCH = {'filename': '/x/lib/python3.11/site-packages/torch/nn/functional.py', 'line': 1, 'name': 'linear'}
HOSTILE = '</script><img src=x onerror="window.taken=1"><!--'


def frame(name: str, line: int = 7) -> dict[str, Any]:
    return {'filename': '/home/me/train.py', 'line': line, 'name': name}


def loaded(content: dict[str, Any]) -> Snapshot:
    Path('x.pickle').write_bytes(pickle.dumps(content, protocol=4))
    return load_snapshot(Path('x.pickle'))


def recorded(*rows: tuple[str, int, int, str], devices: int = 1, **ours: Any) -> Snapshot:
    """A snapshot of events a millisecond apart, each an action, an address, bytes and the function it is from."""
    trace = [
        {'action': action, 'addr': address, 'size': size, 'time_us': 1000 * number, 'frames': [TORCH, frame(name)]}
        for number, (action, address, size, name) in enumerate(rows, start=1)
    ]
    return loaded({'device_traces': [trace] * devices, 'segments': [], 'composer_memprof': ours})


def a_step(big: str = 'big_layer') -> Snapshot:
    """64 MiB over nearly all the time, and for half of it 16 MiB on top."""
    return recorded(
        ('alloc', 1 << 30, 64 * MIB, big),
        *(('alloc', n, 1000, 'little') for n in range(1, 5)),
        ('alloc', 2 << 30, 16 * MIB, 'head'),
        *(('free_completed', n, 1000, 'little') for n in range(1, 5)),
        ('free_completed', 2 << 30, 16 * MIB, 'head'),
        *(('alloc', n, 1000, 'little') for n in range(1, 9)),
        phases=[[500, 3, 'forward'], [9500, 3, 'backward'], [15000, 4, 'forward']],
        tensors=[[20_000, 1 << 30, 64 * MIB, 'parameter', 'blocks.0.weight']],
    )


def place(page: Any, across: float, up: float) -> tuple[float, float]:
    """A point of the timeline, in shares of its width and height."""
    box = page.locator('#timeline').bounding_box()
    return box['x'] + 70 + (box['width'] - 76) * across, box['y'] + 18 + (box['height'] - 70) * (1 - up)
