"""The memory of a device when it ran out, as one stack: what torch uses, what lies idle, what others use, what is free."""

from __future__ import annotations

from collections.abc import Iterator

from composer_memprof.analysis.memory.snapshot_report import SnapshotReport
from composer_memprof.messages import human_bytes
from composer_memprof.report.html.run.charts.chart import Chart, Table, bytes_axis
from composer_memprof.vocabulary import CATEGORY_LABELS, MEMORY_CATEGORIES

_COLORS = {category.key: category.color for category in MEMORY_CATEGORIES}
_IDLE, _OUTSIDE, _FREE = '#9aa3ad', '#8a6d3b', 'line'
#: A category of a smaller share of the device is one of the others.
_SHARE = 0.01


def device_memory(report: SnapshotReport, label: str) -> Iterator[Chart]:
    """The picture, if the sizes are known.

    Args:
        report (SnapshotReport): on the snapshot that was taken when memory ran out.
        label (str): of the rank.
    """
    oom = report.oom
    device = next((each for each in report.devices if oom is not None and each.device == (oom.device or 0)), None)
    if oom is None or device is None or device.at_failure is None:
        return
    if oom.total is None or oom.reserved is None or oom.allocated is None or oom.free is None:
        return
    least = _SHARE * oom.total
    large = [share for share in device.at_failure.categories if share.bytes >= least]
    parts = [
        (CATEGORY_LABELS.get(share.category, share.category), share.bytes, _COLORS[share.category]) for share in large
    ]
    others = oom.allocated - sum(share.bytes for share in large)
    parts += [
        ('other categories', max(others, 0), '#6b7480'),
        ('idle in torch', max(oom.reserved - oom.allocated, 0), _IDLE),
        ('outside of torch', max(oom.total - oom.reserved - oom.free, 0), _OUTSIDE),
        ('free', oom.free, _FREE),
    ]
    parts = [part for part in parts if part[1] > 0]
    asked = '' if oom.requested is None else f' {human_bytes(oom.requested)} more were asked for.'
    axis = bytes_axis(oom.total + (oom.requested or 0))
    yield Chart(
        key='device',
        title='The device when memory ran out',
        words=f'All {human_bytes(oom.total)} of device {device.device}, {label}.{asked}',
        data=[
            {
                'type': 'bar',
                'orientation': 'h',
                'name': name,
                'x': [size],
                'y': [0],
                'marker': {'color': color},
                'text': [f'{name}<br>{human_bytes(size)}' if size > 0.08 * oom.total else ''],
                'textposition': 'inside',
                'insidetextanchor': 'middle',
                'customdata': [human_bytes(size)],
                'hovertemplate': f'{name}: %{{customdata}}<extra></extra>',
            }
            for name, size, color in parts
        ]
        + _asked(oom.requested, oom.total - oom.free),
        layout={
            'barmode': 'stack',
            'xaxis': axis,
            'yaxis': {'visible': False, 'range': [-0.5, 0.5]},
            'margin': {'t': 10, 'b': 40, 'l': 10, 'r': 10},
        },
        table=Table(
            ['of the device', 'bytes', 'share'],
            [[name, human_bytes(size), f'{100 * size / oom.total:.0f} %'] for name, size, _ in parts],
        ),
        height=190,
    )


def _asked(requested: int | None, used: int) -> list[dict[str, object]]:
    """A frame of the size that was asked for, where it would have begun."""
    if not requested:
        return []
    return [
        {
            'type': 'scatter',
            'mode': 'lines',
            'name': 'asked for',
            'x': [used, used + requested, used + requested, used, used],
            'y': [-0.42, -0.42, 0.42, 0.42, -0.42],
            'line': {'color': 'failed', 'width': 2, 'dash': 'dash'},
            'hovertemplate': f'asked for: {human_bytes(requested)}<extra></extra>',
        }
    ]
