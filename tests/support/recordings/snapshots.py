"""Handmade snapshots for the tests of the analysis."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from composer_memprof.artifacts.reading.manifest import Entry, append_line

REAL = Path(__file__).parents[4] / 'shared' / 'data' / 'snapshots'
FRAME = {'filename': '/home/me/train.py', 'line': 7, 'name': 'step'}
TORCH = {'filename': '/x/lib/python3.11/site-packages/torch/nn/functional.py', 'line': 1, 'name': 'linear'}


def event(action: str, address: int, size: int, frames: Any = None, time: int = 0) -> dict[str, Any]:
    frames = [FRAME] if frames is None else frames
    return {'action': action, 'addr': address, 'size': size, 'stream': 0, 'time_us': time, 'frames': frames}


def freed(address: int, size: int, frames: Any = None, time: int = 0) -> list[dict[str, Any]]:
    """Both events of a free."""
    return [event(action, address, size, frames, time) for action in ('free_requested', 'free_completed')]


def segment(
    *blocks: tuple[int, int], device: int = 0, total: int = 4096, frames: Any = None, **more: Any
) -> dict[str, Any]:
    frames = [FRAME] if frames is None else frames
    live = [{'address': a, 'size': s, 'state': 'active_allocated', 'frames': frames} for a, s in blocks]
    return {'device': device, 'address': blocks[0][0], 'total_size': total, 'blocks': live, **more}


def saved(content: Any, name: str = 'x.pickle') -> Path:
    Path(name).write_bytes(pickle.dumps(content, protocol=4))
    return Path(name)


def plain(*events: dict[str, Any], segments: Any = (), **ours: Any) -> dict[str, Any]:
    """A snapshot; ``ours`` are the notes of this project's recorders."""
    content = {'device_traces': [list(events)], 'segments': list(segments)}
    return {**content, 'composer_memprof': ours} if ours else content


def listed(folder: str, name: str, content: Any, rank: int = 0, batch: int = 1, **more: Any) -> None:
    """Write a snapshot into a run's folder, and its line in the manifest."""
    home = Path(folder) / 'torch_traces'
    home.mkdir(parents=True, exist_ok=True)
    if content is not None:
        saved(content, str(home / name))
    line = {'kind': 'memory_snapshot', 'status': 'saved', 'epoch': 0, 'run_name': folder, **more}
    entry = Entry(path=name, remote=None, bytes=1, sha256='', rank=rank, batch=batch, **line)
    append_line(home / f'rank{rank}.manifest.jsonl', entry)


def without_stacks() -> dict[str, Any]:
    """As from a GPU: a weight of 4 MiB from before the recording; in backward, on a thread without Python stacks, two
    temporaries of 8 and 2 MiB and a gradient of 6 MiB."""
    mib = 1 << 20
    sizes = {1 << 30: 8 * mib, 2 << 30: 2 * mib, 3 << 30: 6 * mib}
    rows = [('alloc', at) for at in sizes] + [('free_completed', at) for at in (1 << 30, 2 << 30)]
    trace = [event(action, at, sizes[at], frames=[], time=1000 * n) for n, (action, at) in enumerate(rows, start=1)]
    return plain(
        *trace,
        segments=[segment((at << 30, size * mib), total=size * mib, frames=[]) for at, size in ((3, 6), (4, 4))],
        phases=[[400, 3, 'forward'], [500, 3, 'backward'], [6000, 3, 'optimizer']],
        modules=[[500, 'blocks.1'], [1500, 'blocks.0']],
        tensors=[
            [7000, 3 << 30, 6 * mib, 'gradient', 'blocks.0.weight'],
            [7000, 4 << 30, 4 * mib, 'parameter', 'blocks.0.weight'],
        ],
    )
