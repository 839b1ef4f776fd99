"""The output of ``check``: for a terminal, as JSON, as Markdown for a pull request, and as JUnit's XML for a CI server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ElementTree, SubElement

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from composer_memprof.budget.checking import ABOVE, NOT_RECORDED, WITHIN, Checked, exit_code
from composer_memprof.budget.sentences import change_text, growth, headline, largest_growth
from composer_memprof.messages import printable
from composer_memprof.schemas import versioned
from composer_memprof.simulation.verdict import DOES_NOT_FIT

_COLUMNS = ('run', 'figure', 'before', 'now', 'change', 'allowed')


def headlines(checked: Sequence[Checked]) -> list[str]:
    """A line for each run, the worst first, which no terminal's width cuts; and the end of a failed command's output."""
    return [line for each in _worst_first(checked) for line in (headline(each), *_printable_lines(each))]


def check_text(checked: Sequence[Checked]) -> RenderableType:
    """The figures of each run, and what grew in those that are above."""
    parts: list[RenderableType] = []
    rows = list(_rows(checked))
    if rows:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in _COLUMNS:
            table.add_column(column, justify='left' if column in ('run', 'figure') else 'right', no_wrap=True)
        for row in rows:
            table.add_row(*row)
        parts += [Text(), table]
    for each in _with_growth(checked):
        parts += [Text(), Text(f'What grew in {printable(each.run.name)}, at the peak', style='bold')]
        parts += [Padding(Text(growth(change)), (0, 0, 0, 2), expand=False) for change in largest_growth(each)]
    return Group(*parts)


def check_dict(checked: Sequence[Checked], budget: Path, torch: str) -> dict[str, Any]:
    """As ``--json`` prints it."""
    runs = [{**each.as_dict(), 'summary': headline(each)} for each in checked]
    code = exit_code(list(checked))
    return versioned('check', {'budget': str(budget), 'torch': torch, 'exit_code': code, 'runs': runs})


def check_markdown(checked: Sequence[Checked]) -> str:
    """A table for a comment on a pull request, or for a job's summary."""
    lines = ['### GPU memory and time', '', *(f'- {_escaped(headline(each))}' for each in _worst_first(checked)), '']
    lines += [' | '.join(['', *_COLUMNS, 'grew most', '']).strip(), '|---|---|---:|---:|---:|---:|---|']
    for each in checked:
        grown = growth(each.grown[0], callers=False) if each in _with_growth(checked) else ''
        for amount, row in zip(each.amounts, _rows([each]), strict=True):
            cells = (*row, grown if amount.measure.of_memory else '')
            lines.append(' | '.join(['', *map(_escaped, cells), '']).strip())
    for each in _with_growth(checked):
        lines += ['', f'What grew in {_escaped(each.run.name)}, at the peak:', '']
        lines += [f'- {_escaped(growth(change))}' for change in largest_growth(each)]
    return '\n'.join(lines)


def write_junit(checked: Sequence[Checked], path: Path) -> None:
    """A test suite with a test for each run."""
    failed = [each for each in checked if each.status in (ABOVE, DOES_NOT_FIT)]
    errors = [each for each in checked if each.status != WITHIN and each not in failed]
    counts = {'tests': str(len(checked)), 'failures': str(len(failed)), 'errors': str(len(errors))}
    suite = Element('testsuite', {'name': 'composer-memprof check', **counts})
    for each in checked:
        case = SubElement(suite, 'testcase', {'classname': 'memory_budget', 'name': printable(each.run.name)})
        if each.status != WITHIN:
            kind = 'failure' if each in failed else 'error'
            problem = SubElement(case, kind, {'type': each.status, 'message': headline(each)})
            problem.text = '\n'.join([*(growth(change) for change in largest_growth(each)), *_printable_lines(each)])
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree(suite).write(path, encoding='utf-8', xml_declaration=True)


def _printable_lines(checked: Checked) -> list[str]:
    return [printable(line) for line in checked.output.splitlines()]


def _worst_first(checked: Sequence[Checked]) -> list[Checked]:
    order = (ABOVE, DOES_NOT_FIT, NOT_RECORDED, WITHIN)
    return sorted(checked, key=lambda each: order.index(each.status) if each.status in order else -1)


def _with_growth(checked: Sequence[Checked]) -> list[Checked]:
    return [each for each in _worst_first(checked) if each.status in (ABOVE, DOES_NOT_FIT) and each.grown]


def _rows(checked: Sequence[Checked]) -> Iterator[tuple[str, ...]]:
    for each in checked:
        for amount in each.amounts:
            show, before = amount.measure.show, amount.recorded
            yield (
                printable(each.run.name),
                amount.measure.label,
                '' if before is None else show(before),
                show(amount.now),
                '' if before is None else change_text(amount.measure, before, amount.now),
                '' if amount.allowed is None else show(amount.allowed),
            )


def _escaped(text: str) -> str:
    for letter in '\\`*_|<>[]':
        text = text.replace(letter, f'\\{letter}')
    return text
