"""A picture of a run's page, as plotly's data and layout, with the table of its numbers.

Plain mappings: plotly's own Python classes take a second to import, and check what is written here once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from composer_memprof.messages import human_bytes


@dataclass(frozen=True)
class Table:
    """Numbers as text: the heads of the columns, and the rows. The first column is text, the others are numbers."""

    heads: list[str]
    rows: list[list[str]]
    left_out: int = 0


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
    """

    key: str
    title: str
    words: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    table: Table
    height: int = 340


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


def limit(size: int, what: str) -> dict[str, Any]:
    return {
        'type': 'line',
        'xref': 'paper',
        'x0': 0,
        'x1': 1,
        'y0': size,
        'y1': size,
        'line': {'color': 'failed', 'width': 1.5, 'dash': 'dash'},
        'label': {'text': f'{what}: {human_bytes(size)}', 'textposition': 'start', 'font': {'color': 'failed'}},
    }


def bytes_axis(largest: int) -> dict[str, Any]:
    """Ticks at whole numbers of a unit, at most five."""
    unit = 1
    while largest / unit >= 1024:
        unit *= 1024
    steps = [digit * 10**power * unit for power in range(4) for digit in (1, 2, 5)]
    step = next((step for step in steps if largest / step <= 5), steps[-1])
    ticks = list(range(0, int(largest * 1.05) + 1, step))
    return {
        'tickvals': ticks,
        'ticktext': [human_bytes(tick).replace('.0 ', ' ') for tick in ticks],
        'rangemode': 'tozero',
    }
