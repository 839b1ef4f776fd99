"""A picture of a run's page, as plotly's data and layout, with the table of its numbers.

Plain mappings: plotly's own Python classes take a second to import, and check what is written here once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Optional

from composer_memprof.messages import human_bytes
from composer_memprof.report.text.amounts import amount

#: What the figures of a callback's files are.
TITLES = {
    'memory_snapshot': 'Allocated memory at the peak',
    'fsdp_mem_tracker': "The model's memory at the peak",
    'saved_tensors_hook': 'Saved tensors',
    'host_rss': 'Host memory',
    'step_times': 'Time of a batch',
    'flops': 'FLOPs of a batch',
}
#: A table with more rows has a filter.
_SHORT = 8
#: A limit that is this many times what is used is not drawn to scale.
_FAR = 4
#: Above the largest size, for the label of a limit.
_ROOM = 1.1


@dataclass(frozen=True)
class Table:
    """Numbers as text: the heads of the columns, and the rows. The first column is text, the others are numbers."""

    heads: list[str]
    rows: list[list[str]]
    left_out: int = 0

    @property
    def is_long(self) -> bool:
        """True if it is worth a filter."""
        return len(self.rows) > _SHORT


@dataclass(frozen=True)
class Chart:
    """One picture and its table.

    Args:
        key (str): for the page's elements.
        title (str): the heading.
        words (str): what the picture shows, for those who do not see it as well.
        data (list): plotly's traces.
        layout (dict): plotly's layout, without colors of the theme.
        height (int): in pixels.
        table (Table): the same numbers.
        choices (list[str]): the names of traces of which one can be chosen.
        filters (dict[str, str]): what the texts of an axis that can be filtered are, by ``'x'`` or ``'y'``.
    """

    key: str
    title: str
    words: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    table: Table
    height: int = 340
    choices: list[str] = field(default_factory=list)
    filters: dict[str, str] = field(default_factory=dict)


def line(name: str, x: list[float], y: list[Optional[int]], dash: str) -> dict[str, Any]:
    """A line over stacked areas, in the color of the text."""
    return {
        'type': 'scatter',
        'mode': 'lines',
        'name': name,
        'x': x,
        'y': y,
        'line': {'dash': dash, 'width': 1.5, 'shape': 'hv', 'color': 'text'},
        'customdata': ['' if size is None else human_bytes(size) for size in y],
        'hovertemplate': '%{customdata}',
    }


def limit(size: int, what: str, top: int) -> dict[str, list[dict[str, Any]]]:
    """A line at a limit, with its label, for a layout; or only the words, where it is far above the picture.

    Args:
        size (int): of the limit.
        what (str): it is.
        top (int): the largest size in the picture.
    """
    label = {
        'text': f'{what}: {human_bytes(size)}',
        'xref': 'paper',
        'x': 1,
        'xanchor': 'right',
        'showarrow': False,
        'font': {'color': 'failed'},
    }
    if size > _FAR * top:
        above = {**label, 'text': f'{label["text"]}, far above', 'yref': 'paper', 'y': 1, 'yanchor': 'top'}
        return {'shapes': [], 'annotations': [above]}
    shape = {
        'type': 'line',
        'xref': 'paper',
        'x0': 0,
        'x1': 1,
        'y0': size,
        'y1': size,
        'line': {'color': 'failed', 'width': 1.5, 'dash': 'dash'},
    }
    return {'shapes': [shape], 'annotations': [{**label, 'y': size, 'yanchor': 'bottom'}]}


def bytes_axis(top: int, size: Optional[int] = None) -> dict[str, Any]:
    """Ticks at whole numbers of a unit, at most five.

    Args:
        top (int): the largest size in the picture.
        size (int, optional): of a limit that is shown, unless it is far above.
    """
    largest = max(top, size) if size is not None and size <= _FAR * top else top
    unit = 1
    while largest / unit >= 1024:
        unit *= 1024
    steps = [digit * 10**power * unit for power in range(4) for digit in (1, 2, 5)]
    step = next((step for step in steps if largest / step <= 5), steps[-1])
    ticks = list(range(0, int(largest * 1.05) + 1, step))
    return {
        'tickvals': ticks,
        'ticktext': [human_bytes(tick).replace('.0 ', ' ') for tick in ticks],
        'range': [0, largest * _ROOM],
    }


def value_axis(top: float, unit: str) -> dict[str, Any]:
    """An axis from 0 to the largest value, of ``unit`` ``'bytes'``, ``'seconds'`` or ``'flops'``."""
    if unit == 'bytes':
        return bytes_axis(int(top))
    power = 10.0 ** math.floor(math.log10(top)) if top > 0 else 1.0
    step = next((digit * power for digit in (0.2, 0.5, 1, 2) if top / (digit * power) <= 5), power)
    ticks = [number * step for number in range(int(top * 1.05 / step) + 1)]
    return {'tickvals': ticks, 'ticktext': [amount(tick, unit) for tick in ticks], 'range': [0, _ROOM * (top or 1.0)]}
