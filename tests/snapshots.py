"""Snapshots made by hand, for the tests of their analysis."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

REAL = Path(__file__).parent.parent.parent / 'shared' / 'data' / 'snapshots'
FRAME = {'filename': '/home/me/train.py', 'line': 7, 'name': 'step'}
TORCH = {'filename': '/x/lib/python3.11/site-packages/torch/nn/functional.py', 'line': 1, 'name': 'linear'}


def event(action: str, address: int, size: int, frames: Any = None, time: int = 0) -> dict[str, Any]:
    frames = [FRAME] if frames is None else frames
    return {'action': action, 'addr': address, 'size': size, 'stream': 0, 'time_us': time, 'frames': frames}


def freed(address: int, size: int, frames: Any = None, time: int = 0) -> list[dict[str, Any]]:
    """Both events of a release."""
    return [event(action, address, size, frames, time) for action in ('free_requested', 'free_completed')]


def segment(*blocks: tuple[int, int], device: int = 0, total: int = 4096, **more: Any) -> dict[str, Any]:
    live = [{'address': a, 'size': s, 'state': 'active_allocated', 'frames': [FRAME]} for a, s in blocks]
    return {'device': device, 'address': blocks[0][0], 'total_size': total, 'blocks': live, **more}


def saved(content: Any, name: str = 'x.pickle') -> Path:
    Path(name).write_bytes(pickle.dumps(content, protocol=4))
    return Path(name)


def plain(*events: dict[str, Any], segments: Any = (), **ours: Any) -> dict[str, Any]:
    """``ours``: what this project's recorders add."""
    content = {'device_traces': [list(events)], 'segments': list(segments)}
    return {**content, 'composer_memprof': ours} if ours else content
