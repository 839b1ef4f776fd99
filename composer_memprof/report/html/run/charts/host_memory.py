"""Host memory over time."""

from __future__ import annotations

from typing import Any

from composer_memprof.analysis.run_report.host_file import HostFile
from composer_memprof.messages import human_bytes, printable
from composer_memprof.report.html.run.charts.chart import Chart, Table, bytes_axis, limit, line


def host_memory(file: HostFile, label: str) -> Chart:
    begin = file.samples[0].time
    x = [round(sample.time - begin, 3) for sample in file.samples]
    process = [sample.rss for sample in file.samples]
    children = [sample.children_rss for sample in file.samples]
    lines = [
        ('this process', process, '#4878a8'),
        ('its children', children, '#e49444'),
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
                f'{human_bytes(size)}, batch {sample.batch}, {sample.phase}'
                for size, sample in zip(sizes, file.samples)
            ],
            'hovertemplate': '%{customdata}',
        }
        for name, sizes, color in lines
        if any(sizes)
    ]
    usage = [sample.cgroup_usage for sample in file.samples]
    if any(usage):
        data.append(line('used by the job (cgroup)', x, usage, dash='dot'))
    top = max(map(sum, zip(process, children)))
    rows = [[name, human_bytes(max(sizes)), human_bytes(sizes[-1])] for name, sizes, _ in lines if any(sizes)]
    rows += [
        [f'grown in {printable(phase)}', human_bytes(size), '']
        for phase, size in sorted(file.charged.items(), key=lambda item: -item[1])
    ]
    return Chart(
        key='host',
        title='Host memory',
        words=f'Resident memory (RSS) of the process and its children, {label}.',
        data=data,
        layout={
            'xaxis': {'title': {'text': 'seconds'}},
            'yaxis': bytes_axis(max(top, max((each or 0 for each in usage), default=0))),
            'hovermode': 'x unified',
            'shapes': [] if file.limit is None else [limit(file.limit, 'limit of the job')],
        },
        table=Table(['of the host memory', 'most', 'at the end'], rows),
    )
