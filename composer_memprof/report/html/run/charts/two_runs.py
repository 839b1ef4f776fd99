"""Two runs: the figures of both on one scale, what changed most first."""

from __future__ import annotations

from collections.abc import Iterator

from composer_memprof.analysis.run_report.comparison import Change, Comparison
from composer_memprof.analysis.run_report.differences import Difference
from composer_memprof.analysis.run_report.figures import TOTAL
from composer_memprof.messages import printable
from composer_memprof.report.html.run.charts.chart import TITLES, Chart, Table, value_axis
from composer_memprof.report.text.amounts import amount
from composer_memprof.vocabulary import CATEGORY_LABELS

#: Most figures of a picture.
_ROWS = 12
#: Beside the longest bar, for its number.
_ROOM = 1.25


def two_runs(comparison: Comparison) -> Iterator[Chart]:
    """A picture for each kind of files that both runs have."""
    for change in comparison.changes:
        if any(each.value or each.others for each in change.figures):
            yield _both(change, printable(comparison.before))


def _both(change: Change, before: str) -> Chart:
    figures = [each for each in change.figures if each.value or each.others][:_ROWS]
    names = [printable(_name(each)) for each in figures]
    sides = [
        (before, 'soft', [each.others for each in figures]),
        ('this run', 'accent', [each.value for each in figures]),
    ]
    return Chart(
        key=f'both-{change.kind.replace("_", "-")}',
        title=f'{TITLES.get(change.kind, change.kind)}: {before} and this run',
        words='Both runs on one scale: the total, then what changed most.',
        data=[
            {
                'type': 'bar',
                'orientation': 'h',
                'name': name,
                'y': names,
                'x': values,
                'marker': {'color': color},
                'text': [amount(value, change.unit) for value in values],
                'textposition': 'outside',
                'cliponaxis': False,
                'customdata': [amount(value, change.unit) for value in values],
                'hovertemplate': '%{y}: %{customdata}',
            }
            for name, color, values in sides
        ],
        layout={
            'barmode': 'group',
            'bargap': 0.3,
            'xaxis': value_axis(_ROOM * max(max(each.value, each.others) for each in figures), change.unit),
            'yaxis': {'type': 'category', 'autorange': 'reversed'},
        },
        table=Table(
            ['figure', before, 'this run', 'change'],
            [
                [
                    printable(_name(each)),
                    amount(each.others, change.unit),
                    amount(each.value, change.unit),
                    _signed(each.value - each.others, change.unit),
                ]
                for each in change.figures
            ],
        ),
        height=110 + 44 * len(figures),
    )


def _name(figure: Difference) -> str:
    return f'total: {figure.name}' if figure.group == TOTAL else CATEGORY_LABELS.get(figure.name, figure.name)


def _signed(value: float, unit: str) -> str:
    return f'{"+" if value >= 0 else "-"}{amount(abs(value), unit)}'
