"""How long each class of kernels takes in a step, by a trace in the format of torch's profiler."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from composer_memprof.artifacts.naming.compression import open_for_read

#: Parts of the names of kernels before their template arguments; the first that is found counts. Others are of other
#: operators.
_NAMES = {
    'collectives': re.compile(r'nccl', re.IGNORECASE),
    'attention': re.compile(r'flash|fmha|attention|pytorch_flash|_sdpa', re.IGNORECASE),
    'matrix_products': re.compile(
        r'gemm|gemv|cutlass|xmma|cublas|scudnn|convolve|winograd|wgrad|dgrad|fprop|nvjet', re.IGNORECASE
    ),
}
#: As the trace of a simulated step calls them.
_KINDS = {'matrix products': 'matrix_products', 'attention': 'attention', 'collectives': 'collectives'}
_LAUNCH = re.compile(r'cu(da)?LaunchKernel')


def seconds_by_class(path: Path) -> dict[str, float]:
    """Seconds a step of each class of kernels, summed over all streams, and of the host for one launch.

    Kernels that overlap count in full. The steps are those that the profiler marked (``ProfilerStep#…``); a trace
    without marks is taken for one step.

    Args:
        path: JSON, compressed if its name says so.

    Raises:
        ValueError: if it is no trace, or has no kernels, in one line.
    """
    try:
        with open_for_read(path) as file:
            read: Any = json.load(file)
        events = [event for event in read['traceEvents'] if event.get('ph') == 'X']
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise ValueError(f'{str(path)!r} is no trace of torch: {type(error).__name__}: {error}') from None
    steps = {event['name'] for event in events if str(event.get('name', '')).startswith('ProfilerStep#')}
    sums: Counter[str] = Counter()
    for event in events:
        name = _class_of(event)
        if name:
            sums[name] += event['dur'] / 1e6 / max(1, len(steps))
    if not sums:
        raise ValueError(f'{str(path)!r} has no kernels of a GPU')
    launch = _seconds_of_launch(events)
    return {**sums, **({'host': launch} if launch else {})}


def _class_of(event: dict[str, Any]) -> str:
    category = event.get('cat')
    if category == 'gpu_memcpy':
        return '' if 'DtoD' in event['name'] else 'copies'
    if category == 'gpu_memset':
        return 'other_operators'
    if category != 'kernel':
        return ''
    kind = event.get('args', {}).get('kind')
    if kind is not None:
        return _KINDS.get(kind, 'other_operators')
    own = event['name'].partition('<')[0]
    return next((name for name, pattern in _NAMES.items() if pattern.search(own)), 'other_operators')


def _seconds_of_launch(events: list[dict[str, Any]]) -> float:
    """The median time from one launch of a thread to its next; 0 where there are too few."""
    launches = defaultdict(list)
    for event in events:
        if event.get('cat') in ('cuda_runtime', 'cuda_driver') and _LAUNCH.match(event['name']):
            launches[event['pid'], event['tid']].append((event['ts'], event.get('args', {}).get('launches', 1)))
    gaps = []
    for starts in launches.values():
        starts.sort()
        gaps += [(after - before) / count for (before, count), (after, _) in zip(starts, starts[1:])]
    return statistics.median(gaps) / 1e6 if gaps else 0.0
