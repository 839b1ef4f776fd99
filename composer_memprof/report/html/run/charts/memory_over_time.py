"""Allocated memory by category over time, with the phases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from composer_memprof.analysis.memory.snapshot_report import DeviceReport
from composer_memprof.analysis.run_report.report import LeadSnapshot
from composer_memprof.messages import human_bytes
from composer_memprof.report.html.run.charts.chart import Chart, Table, bytes_axis, limit, line
from composer_memprof.vocabulary import CATEGORY_LABELS, MEMORY_CATEGORIES, PHASE_COLORS, UNKNOWN_COLOR

#: Of a run that failed, this many of its last batches are shown.
_BATCHES = 3
_CATEGORY_COLORS = {category.key: category.color for category in MEMORY_CATEGORIES}


def memory_over_time(lead: LeadSnapshot, other: Optional[LeadSnapshot] = None, before: str = '') -> Chart:
    """The picture.

    Args:
        lead (LeadSnapshot): with ``over_time``.
        other (LeadSnapshot, optional): of another run, whose picture has the same scale.
        before (str): the name of the run, if it is the one that another is compared with.
    """
    over = lead.over_time
    assert over is not None
    device = _device(lead)
    in_time = over.time_us is not None
    x = (over.time_us / 1000).round(3).tolist() if over.time_us is not None else over.moments.tolist()
    data: list[dict[str, Any]] = [
        {
            'type': 'scatter',
            'mode': 'lines',
            'name': CATEGORY_LABELS[category],
            'x': x,
            'y': sizes.tolist(),
            'stackgroup': 'allocated',
            'line': {'width': 0, 'shape': 'hv', 'color': _CATEGORY_COLORS[category]},
            'fillcolor': _CATEGORY_COLORS[category],
            'customdata': [human_bytes(size) for size in sizes.tolist()],
            'hovertemplate': '%{customdata}',
        }
        for category, sizes in over.sizes.items()
    ]
    if over.reserved is not None:
        data.append(line('reserved', x, over.reserved.tolist(), dash='dot'))
    shapes = [
        {
            'type': 'rect',
            'xref': 'x',
            'yref': 'paper',
            'x0': span.begin_us / 1000,
            'x1': span.end_us / 1000,
            'y0': 1,
            'y1': 1.03,
            'line': {'width': 0},
            'fillcolor': PHASE_COLORS.get(span.phase, UNKNOWN_COLOR),
        }
        for span in over.phases
    ]
    top = max(_top(each) for each in (lead, other) if each is not None)
    line_of_memory = {} if device.memory is None else limit(device.memory, 'memory of the device', top)
    phases = list(dict.fromkeys(span.phase for span in over.phases if span.phase in PHASE_COLORS))
    failed = lead.report.error or lead.report.oom is not None
    # Of a leak, all of the batches are the picture.
    closely = over.begin_of_last(_BATCHES) if in_time and failed and not device.growth.growing else None
    shown = {} if closely is None else {'range': [closely / 1000, x[-1]]}
    return Chart(
        key='over-time-before' if before else 'over-time',
        title=f'Memory over time, {before}' if before else 'Memory over time',
        words=f'Allocated memory by category on device {over.device}, {lead.label}.'
        + (f' The bar on top shows the phases: {", ".join(phases)}.' if phases else '')
        + (f' The last {_BATCHES} batches are shown; a double click shows all.' if shown else ''),
        data=[*data, *_phase_legend(phases)],
        layout={
            'xaxis': {'title': {'text': 'milliseconds' if in_time else 'events'}, **shown},
            'yaxis': bytes_axis(top, device.memory),
            'shapes': [*shapes, *line_of_memory.get('shapes', [])],
            'annotations': line_of_memory.get('annotations', []),
            'hovermode': 'x unified',
        },
        table=_at_peak(device),
        height=440,
        choices=[CATEGORY_LABELS[category] for category in over.sizes],
    )


def _top(lead: LeadSnapshot) -> int:
    """The largest size in a picture."""
    device = _device(lead)
    return max(device.peak.bytes, device.reserved_peak or 0)


def _device(lead: LeadSnapshot) -> DeviceReport:
    assert lead.over_time is not None
    return next(device for device in lead.report.devices if device.device == lead.over_time.device)


def _phase_legend(phases: Sequence[str]) -> list[dict[str, Any]]:
    """Traces without points, so that the legend names the colors of the phases."""
    return [
        {
            'type': 'scatter',
            'mode': 'markers',
            'name': f'{phase} (phase)',
            'x': [None],
            'y': [None],
            'marker': {'symbol': 'square', 'size': 9, 'color': PHASE_COLORS[phase]},
            'hoverinfo': 'skip',
        }
        for phase in phases
    ]


def _at_peak(device: DeviceReport) -> Table:
    peak = device.peak
    rows = [
        [
            CATEGORY_LABELS[share.category],
            human_bytes(share.bytes),
            f'{100 * share.bytes / max(peak.bytes, 1):.1f} %',
            f'{share.blocks:,}',
        ]
        for share in peak.categories
    ]
    return Table(['category, at the peak', 'bytes', 'share', 'blocks'], rows)
