"""A treemap of modules."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from composer_memprof.messages import printable
from composer_memprof.report.html.run.charts.chart import Chart, Table
from composer_memprof.report.text.amounts import amount
from composer_memprof.vocabulary import MEMORY_CATEGORIES

#: Most modules of the picture, and rows of the table.
_MODULES, _ROWS = 400, 40
_ROOT, _OUTSIDE = '(model)', '(outside of modules)'
#: The colors of modules. No category and no phase has one of them.
MODULE_COLORS = ('#3f628f', '#9a7250', '#55805a', '#7c6590', '#4a8288', '#87794a', '#8f5a6c', '#657487')
#: The color of what is around the groups outside of modules.
_AROUND = '#5b6472'
#: Characters of a line in an area.
_LINE = 24
_GROUP_COLORS = {category.label: category.color for category in MEMORY_CATEGORIES}


@dataclass(frozen=True)
class _Node:
    id: str
    parent: str
    label: str
    name: str
    size: float
    color: str = ''


def module_tree(
    key: str,
    title: str,
    words: str,
    own: Mapping[str, float],
    unit: str,
    outside: Mapping[tuple[str, str], float] = MappingProxyType({}),
) -> Chart:
    """Modules as a treemap. A click on one zooms into it.

    Args:
        key (str): of the chart.
        title (str): the heading.
        words (str): what the picture shows.
        own (Mapping): the value of each module without those inside of it.
        unit (str): ``'bytes'`` or ``'flops'``.
        outside (Mapping): what belongs to no module, by the label of a category and a name in it.
    """
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
    nodes = [
        _Node(
            name or _ROOT,
            '' if not name else name.rpartition('.')[0] or _ROOT,
            _label(name),
            name or 'the model',
            inclusive[name],
        )
        for name in sizes
    ]
    if outside:
        nodes = [replace(nodes[0], label='all', name='all', size=nodes[0].size + sum(outside.values())), *nodes[1:]]
        nodes += _outside(outside)
    return Chart(
        key=key,
        title=title,
        words=f'{words}. The area is {unit} with everything inside of a module; a click zooms in, and so do arrow keys and Enter; Escape goes back.',
        data=[
            {
                'type': 'treemap',
                'ids': [node.id for node in nodes],
                'labels': [printable(node.label) for node in nodes],
                'parents': [node.parent for node in nodes],
                'values': [node.size for node in nodes],
                'branchvalues': 'total',
                'customdata': [
                    [printable(node.name), amount(node.size, unit), _in_lines(printable(node.label))] for node in nodes
                ],
                'texttemplate': '%{customdata[2]}<br>%{customdata[1]}',
                'hovertemplate': '%{customdata[0]}<br>%{customdata[1]}<extra></extra>',
                'pathbar': {'visible': False},  # the page has one that the keyboard reaches
                'tiling': {'pad': 2},
                'marker': {'colors': [node.color or None for node in nodes], 'depthfade': True},
                'maxdepth': 4,
            }
        ],
        layout={'margin': {'l': 4, 'r': 4, 't': 4, 'b': 4}, 'treemapcolorway': MODULE_COLORS},
        table=Table(
            ['module', 'own', 'with all inside'],
            [
                [printable(name) or 'the model', amount(sizes[name], unit), amount(inclusive[name], unit)]
                for name in sorted(sizes, key=lambda name: -inclusive[name])[:_ROWS]
            ]
            + [
                [printable(f'{_OUTSIDE}: {group}, {name}'), amount(size, unit), amount(size, unit)]
                for (group, name), size in sorted(outside.items(), key=lambda item: -item[1])[:_ROWS]
            ],
            max(len(sizes) - _ROWS, 0) + max(len(largest) - _MODULES, 0),
        ),
        height=420,
    )


def _outside(outside: Mapping[tuple[str, str], float]) -> Iterator[_Node]:
    """One node around all, one for each group, and the names in it."""
    groups: dict[str, float] = {}
    for (group, _), size in outside.items():
        groups[group] = groups.get(group, 0) + size
    yield _Node(_OUTSIDE, _ROOT, 'outside of modules', 'outside of modules', sum(groups.values()), _AROUND)
    for group, size in groups.items():
        yield _Node(f'{_OUTSIDE}/{group}', _OUTSIDE, group, group, size, _GROUP_COLORS.get(group, ''))
    for (group, name), size in outside.items():
        inner = f'{_OUTSIDE}/{group}'
        yield _Node(f'{inner}/{name}', inner, name, f'{group}: {name}', size, _GROUP_COLORS.get(group, ''))


def _in_lines(label: str) -> str:
    """A long label in several lines: Plotly makes one line as small as the area is narrow."""
    return '<br>'.join(textwrap.wrap(label, _LINE, break_long_words=False, break_on_hyphens=False)) or label


def _label(name: str) -> str:
    """The last part; of equal layers that are one module, ``blocks.*``, with the part before it."""
    parts = name.split('.')
    return '.'.join(parts[-2:] if parts[-1] == '*' else parts[-1:]) or 'the model'


def _outer(name: str) -> Iterator[str]:
    """The modules around a module, innermost first; the model's name is empty."""
    while name:
        name = name.rpartition('.')[0]
        yield name
