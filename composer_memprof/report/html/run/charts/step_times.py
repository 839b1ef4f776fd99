"""The time of a batch by phase and rank."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from composer_memprof.analysis.run_report.readers import StepTimesFile
from composer_memprof.messages import printable
from composer_memprof.report.html.run.charts.chart import Chart, Table, value_axis
from composer_memprof.report.text.amounts import amount
from composer_memprof.vocabulary import PHASE_COLORS, UNKNOWN_COLOR


def step_times(times: Mapping[int, StepTimesFile], labels: Mapping[int, str]) -> Chart:
    ranks = sorted(times)
    named = dict.fromkeys(phase for rank in ranks for phase in times[rank].share)
    phases = [phase for phase in named if any(times[rank].share.get(phase) for rank in ranks)]
    names = [printable(labels.get(rank, str(rank))) for rank in ranks]
    mean = {phase: [times[rank].seconds.get(phase, {}).get('mean', 0.0) for rank in ranks] for phase in phases}
    return Chart(
        key='steps',
        title='Where the time of a batch goes',
        words='The mean time of each phase, of each rank.',
        data=[
            {
                'type': 'bar',
                'orientation': 'h',
                'name': phase,
                'y': names,
                'x': mean[phase],
                'marker': {'color': PHASE_COLORS.get(phase, UNKNOWN_COLOR)},
                'customdata': [amount(seconds, 'seconds') for seconds in mean[phase]],
                'hovertemplate': '%{customdata}',
            }
            for phase in phases
        ],
        layout={
            'barmode': 'stack',
            'xaxis': value_axis(max((sum(times) for times in zip(*mean.values())), default=0.0), 'seconds'),
            'yaxis': {'type': 'category', 'autorange': 'reversed', 'showticklabels': len(ranks) <= 64},
            'hovermode': 'y unified',
        },
        table=Table(
            ['phase', 'least', 'median', 'most'],
            [
                [phase, *(amount(each, 'seconds') for each in (min(found), float(np.median(found)), max(found)))]
                for phase, found in mean.items()
            ],
        ),
        choices=phases,
        filters={'y': 'ranks'} if len(ranks) > 1 else {},
        height=min(150 + 22 * len(ranks), 700),
    )
