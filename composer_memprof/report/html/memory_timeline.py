"""A page with memory over time by category: one file, without a script. Loads nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from composer_memprof.messages import human_bytes
from composer_memprof.recorders.kineto import MemoryTimeline
from composer_memprof.report.html.pages import PAGES
from composer_memprof.vocabulary import AUTOGRAD_DETAIL, MEMORY_CATEGORIES, UNKNOWN_COLOR, MemoryCategory

_WIDTH, _HEIGHT = 1000, 380
#: More points are merged: each span of time keeps its largest total.
_MAX_POINTS = 1500
_CATEGORIES = {category.key: category for category in (*MEMORY_CATEGORIES, AUTOGRAD_DETAIL)}


def write_memory_timeline(timeline: MemoryTimeline, path: Path) -> None:
    """Write the page of ``timeline`` to ``path``."""
    page = PAGES.get_template('memory_timeline.html.j2').render(
        device=timeline.device,
        width=_WIDTH,
        height=_HEIGHT,
        peak=human_bytes(timeline.peak_bytes),
        **_drawing(timeline),
    )
    path.write_text(page, encoding='utf-8')


def _drawing(timeline: MemoryTimeline) -> dict[str, object]:
    names = [name for name, sizes in timeline.sizes.items() if any(sizes)]
    times = np.asarray(timeline.times_us, dtype=np.float64)
    sizes = np.asarray([timeline.sizes[name] for name in names], dtype=np.float64).reshape(len(names), len(times))
    at_peak = sizes[:, sizes.sum(axis=0).argmax()] if sizes.size else np.zeros(0)
    times, sizes = _thin_out(times, sizes)
    tops = np.cumsum(sizes, axis=0)
    top = max(float(tops.max(initial=0)), 1.0)
    span = max(float(times[-1]), 1.0) if len(times) else 1.0
    x, y = times / span * _WIDTH, _HEIGHT - tops / top * _HEIGHT
    floor = np.full(len(times), float(_HEIGHT))
    bands = []
    for index, name in enumerate(names):
        category = _CATEGORIES.get(name, MemoryCategory(name, name, '', UNKNOWN_COLOR))
        upper, lower = y[index], y[index - 1] if index else floor
        points = [*zip(x, upper), *zip(x[::-1], lower[::-1])]
        bands.append(
            {
                'name': category.label,
                'color': category.color,
                'points': ' '.join(f'{a:.1f},{b:.1f}' for a, b in points),
                'at_peak': human_bytes(at_peak[index]),
            }
        )
    return {
        'bands': bands,
        'ticks': [{'y': _HEIGHT * (1 - part / 4), 'label': human_bytes(top * part / 4)} for part in range(1, 5)],
        'duration': f'{span / 1000:.1f} ms',
        'merged': len(timeline.times_us) > len(times),
        'points': len(timeline.times_us),
    }


def _thin_out(times: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(times) <= _MAX_POINTS:
        return times, sizes
    total = sizes.sum(axis=0)
    groups = np.array_split(np.arange(len(times)), _MAX_POINTS)
    kept = np.asarray([group[total[group].argmax()] for group in groups])
    return times[kept], sizes[:, kept]
