"""Ranks side by side: each figure beside the median of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from composer_memprof.analysis.run_report.differences import RankTable
from composer_memprof.analysis.run_report.figures import TOTAL
from composer_memprof.messages import count_of, printable
from composer_memprof.report.html.run.charts.chart import TITLES, Chart, Table, value_axis
from composer_memprof.report.text.amounts import amount
from composer_memprof.vocabulary import CATEGORY_LABELS

#: Most rows.
_ROWS = 40
#: Ranks up to this number stay in their order. Of more, this many are drawn: those that differ most.
_COLUMNS = 64
#: The color of a ratio reaches its end here: a quarter, and four times.
_MOST_RATIO = 4.0
#: A rank that is this share away from the median is named.
_FAR = 0.02
#: Cells of at most so many ranks have room for their numbers.
_WITH_NUMBERS = 12
#: Ranks that differ most, which the picture of all ranks names.
_NAMED = 3


def all_ranks(table: RankTable, labels: Mapping[int, str]) -> Iterator[Chart]:
    """One figure of more ranks than cells could have numbers for: a point for each."""
    total = next((row for row, (group, _) in enumerate(table.names) if group == TOTAL), None)
    if total is None or len(table.ranks) <= _WITH_NUMBERS:
        return
    known = np.flatnonzero(~np.isnan(table.values[total]))
    if not len(known):
        return
    values = table.values[total][known]
    middle = float(np.median(values))
    ranks = [table.ranks[column] for column in known.tolist()]
    names = [printable(labels.get(rank, str(rank))) for rank in ranks]
    texts = [amount(value, table.unit) for value in values.tolist()]
    far = np.argsort(-np.abs(values - middle), kind='stable')[:_NAMED]
    named = {int(place) for place in far if abs(values[place] - middle) > _FAR * abs(middle)}
    top = float(values.max())
    # Names of ranks close to the right edge are on the left of their points.
    sides = ['middle left' if place > 0.8 * len(ranks) else 'middle right' for place in range(len(ranks))]
    yield Chart(
        key=f'all-{table.kind.replace("_", "-")}',
        title=f'{TITLES.get(table.kind, table.kind)}, {count_of(len(ranks), "rank")}',
        words=f'Each point is a rank. The line is the median, {amount(middle, table.unit)}.',
        data=[
            {
                'type': 'scatter',
                'mode': 'markers+text',
                'x': ranks,
                'y': values.tolist(),
                'text': [
                    f'{name}: {text}' if place in named else '' for place, (name, text) in enumerate(zip(names, texts))
                ],
                'textposition': sides,
                'marker': {'size': 5, 'color': 'accent'},
                'customdata': [f'{name}: {text}' for name, text in zip(names, texts)],
                'hovertemplate': '%{customdata}<extra></extra>',
            }
        ],
        layout={
            'xaxis': {'title': {'text': 'rank'}},
            'yaxis': value_axis(top, table.unit),
            'shapes': [
                {
                    'type': 'line',
                    'xref': 'paper',
                    'x0': 0,
                    'x1': 1,
                    'y0': middle,
                    'y1': middle,
                    'line': {'color': 'soft', 'width': 1, 'dash': 'dot'},
                }
            ],
        },
        table=Table(
            ['rank', TITLES.get(table.kind, table.kind).lower()],
            [[names[place], texts[place]] for place in np.argsort(-values, kind='stable')[:_COLUMNS].tolist()],
            left_out=max(len(ranks) - _COLUMNS, 0),
        ),
        height=300,
    )


def ranks_side_by_side(table: RankTable, labels: Mapping[int, str]) -> Chart:
    ratios = table.ratios()
    with np.errstate(divide='ignore', invalid='ignore'):
        distance = np.abs(np.log2(np.clip(ratios, 1 / _MOST_RATIO, _MOST_RATIO)))
    # What is small beside the total does not count as a difference.
    weight = np.nan_to_num(np.nanmax(table.values, axis=1) / max(np.nanmax(table.values[0]), 1e-12))
    total = next((row for row, (group, _) in enumerate(table.names) if group == TOTAL), 0)
    by_row = np.nan_to_num(np.nanmax(distance, axis=1)) * np.minimum(weight, 1)
    by_row[total] = np.inf
    rows = np.argsort(-by_row, kind='stable')[:_ROWS]
    by_column = np.nan_to_num(np.nanmax(distance * weight[:, None], axis=0))
    many = len(by_column) > _COLUMNS
    columns = np.argsort(-by_column, kind='stable')[:_COLUMNS] if many else np.arange(len(by_column))
    names = [printable(_row_name(*table.names[row])) for row in rows.tolist()]
    ranks = [printable(labels.get(table.ranks[column], str(table.ranks[column]))) for column in columns.tolist()]
    values = table.values[np.ix_(rows, columns)]
    z = np.log2(np.clip(ratios[np.ix_(rows, columns)], 1 / _MOST_RATIO, _MOST_RATIO))
    total_ranks = len(table.ranks)
    which = f'The {len(ranks)} ranks of {total_ranks:,} that differ most, each' if many else 'Each rank'
    return Chart(
        key=f'ranks-{table.kind.replace("_", "-")}',
        title=f'{TITLES.get(table.kind, table.kind)}, ranks side by side',
        words=f'{which} beside the median of all {count_of(total_ranks, "rank")}: red is more, blue is less.',
        data=[
            {
                'type': 'heatmap',
                'x': ranks,
                'y': names,
                'z': [[None if np.isnan(each) else round(each, 3) for each in row] for row in z.tolist()],
                'text': [
                    ['' if np.isnan(each) else amount(each, table.unit) for each in row] for row in values.tolist()
                ],
                **({'texttemplate': '%{text}'} if len(ranks) <= _WITH_NUMBERS else {}),
                'hovertemplate': '%{x}<br>%{y}<br>%{text}<extra></extra>',
                'zmin': -2,
                'zmax': 2,
                'colorscale': [[0, '#2166ac'], [0.5, 'raised'], [1, '#b2182b']],
                'colorbar': {
                    'tickvals': [-2, -1, 0, 1, 2],
                    'ticktext': ['¼', '½', 'median', '2 times', '4 times'],
                    'thickness': 12,
                },
                'xgap': 1,
                'ygap': 1,
            }
        ],
        layout={
            'xaxis': {'type': 'category', 'title': {'text': 'ranks'}},
            'yaxis': {'autorange': 'reversed', 'type': 'category'},
        },
        table=_spread(table, rows.tolist()),
        height=140 + 20 * len(names),
        filters={'x': 'ranks', 'y': 'figures'},
    )


def _row_name(group: str, name: str) -> str:
    return f'total: {name}' if group == TOTAL else CATEGORY_LABELS.get(name, name)


def _spread(table: RankTable, rows: Sequence[int]) -> Table:
    found = []
    for row in rows:
        values = table.values[row]
        known = np.flatnonzero(~np.isnan(values))
        if len(known):
            least, most = known[values[known].argmin()], known[values[known].argmax()]
            found.append(
                [
                    printable(_row_name(*table.names[row])),
                    amount(float(values[least]), table.unit),
                    amount(float(np.median(values[known])), table.unit),
                    amount(float(values[most]), table.unit),
                    str(table.ranks[int(most)]),
                ]
            )
    return Table(['figure', 'least', 'median', 'most', 'rank with most'], found)
