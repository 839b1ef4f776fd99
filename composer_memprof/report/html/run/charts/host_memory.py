"""Host memory over time."""

from __future__ import annotations

from typing import Any

from composer_memprof.messages import human_bytes, printable
from composer_memprof.recorders.host.summary import HostSummary
from composer_memprof.report.html.run.charts.chart import Chart, Table, bytes_axis, limit, line


def host_memory(summary: HostSummary, label: str) -> Chart:
    over_time = summary.over_time
    x = over_time.seconds
    lines = [
        ('this process', over_time.rss, '#4878a8'),
        ('its children', over_time.children_rss, '#e49444'),
    ]
    data: list[dict[str, Any]] = [
        {
            'type': 'scatter',
            'mode': 'lines',
            'name': name,
            'x': x,
            'y': sizes,
            'stackgroup': 'rss',
            'line': {'width': 0, 'color': color},
            'fillcolor': color,
            'customdata': [
                f'{human_bytes(size)}, batch {batch}, {phase}'
                for size, batch, phase in zip(sizes, over_time.batch, over_time.phase)
            ],
            'hovertemplate': '%{customdata}',
        }
        for name, sizes, color in lines
        if any(sizes)
    ]
    usage = over_time.cgroup_usage
    if any(usage):
        data.append(line('used by the job (cgroup)', x, usage, dash='dot'))
    top = max(summary.rss_peak, summary.usage_peak or 0)
    rows = [[name, human_bytes(max(sizes)), human_bytes(sizes[-1])] for name, sizes, _ in lines if any(sizes)]
    rows += [
        [f'grown in {printable(phase)}', human_bytes(size), '']
        for phase, size in sorted(summary.charged.items(), key=lambda item: -item[1])
    ]
    return Chart(
        key='host',
        title='Host memory',
        words=f'Resident memory (RSS) of the process and its children, {label}.',
        data=data,
        layout={
            'xaxis': {'title': {'text': 'seconds'}},
            'yaxis': bytes_axis(top, summary.limit),
            'hovermode': 'x unified',
            **({} if summary.limit is None else limit(summary.limit, 'limit of the job', top)),
        },
        table=Table(['of the host memory', 'most', 'at the end'], rows),
    )
