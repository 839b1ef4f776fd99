"""A treemap of modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from composer_memprof.messages import printable
from composer_memprof.report.html.run.charts.chart import Chart, Table
from composer_memprof.report.text.amounts import amount

#: Most modules of the picture, and rows of the table.
_MODULES, _ROWS = 400, 40


def module_tree(key: str, title: str, words: str, own: Mapping[str, float], unit: str) -> Chart:
    """Modules as a treemap. A click on one zooms into it."""
    largest = sorted((name for name in own if own[name] > 0), key=lambda name: -own[name])
    sizes: dict[str, float] = {'': own.get('', 0)}
    for name in largest[:_MODULES]:
        sizes[name] = own[name]
        for outer in _outer(name):
            sizes.setdefault(outer, own.get(outer, 0))
    inclusive = dict(sizes)
    for name, size in sizes.items():
        for outer in _outer(name):
            inclusive[outer] += size
    ids = [name or '(model)' for name in sizes]
    return Chart(
        key=key,
        title=title,
        words=f'{words}. The area is {unit} with everything inside of a module; a click zooms in, and so do arrow keys and Enter; Escape goes back.',
        data=[
            {
                'type': 'treemap',
                'ids': ids,
                'labels': [printable(name.rpartition('.')[2]) or 'the model' for name in sizes],
                'parents': ['' if not name else name.rpartition('.')[0] or '(model)' for name in sizes],
                'values': [inclusive[name] for name in sizes],
                'branchvalues': 'total',
                'customdata': [[printable(name) or 'the model', amount(inclusive[name], unit)] for name in sizes],
                'texttemplate': '%{label}<br>%{customdata[1]}',
                'hovertemplate': '%{customdata[0]}<br>%{customdata[1]}<extra></extra>',
                'pathbar': {'visible': False},  # the page has one that the keyboard reaches
                'tiling': {'pad': 2},
                'maxdepth': 4,
            }
        ],
        layout={'margin': {'l': 4, 'r': 4, 't': 4, 'b': 4}},
        table=Table(
            ['module', 'own', 'with all inside'],
            [
                [printable(name) or 'the model', amount(sizes[name], unit), amount(inclusive[name], unit)]
                for name in sorted(sizes, key=lambda name: -inclusive[name])[:_ROWS]
            ],
            max(len(sizes) - _ROWS, 0) + max(len(largest) - _MODULES, 0),
        ),
        height=420,
    )


def _outer(name: str) -> Iterator[str]:
    """The modules around a module, innermost first; the model's name is empty."""
    while name:
        name = name.rpartition('.')[0]
        yield name
