"""How results show themselves: as the command's text, and in a notebook as tables."""

from __future__ import annotations

import html
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from composer_memprof.messages import printable
from composer_memprof.terminal import Unpadded

#: Columns of what is neither a line nor a table.
_WIDTH = 120
# Colors are the notebook's own, so that both its light and its dark theme suit.
_LINE = 'margin:0'
_CELL = 'padding:2px 12px 2px 0;vertical-align:top;text-align:{};background:transparent;color:inherit;border:0'
_TABLE = 'border-collapse:collapse;margin:4px 0;background:transparent;color:inherit;border:0'
_OUTPUT = 'margin:4px 0;white-space:pre-wrap;background:transparent;color:inherit'


@dataclass(frozen=True)
class Output:
    """What a program printed, line by line."""

    plain: str

    def __rich__(self) -> Text:
        return Text(self.plain)


class Shown(ABC):
    """A result that ``print`` shows as its command does, and a notebook as tables."""

    @abstractmethod
    def text(self) -> RenderableType:
        """What the command prints, as rich takes it."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """What the command prints with ``--json``."""

    def tables(self) -> RenderableType:
        """What a notebook shows."""
        return self.text()

    def __str__(self) -> str:
        return in_a_terminal(self.text())

    def _repr_html_(self) -> str:
        return as_html(self.tables())


def in_a_terminal(what: RenderableType) -> str:
    """As the command prints it, in as many columns as the terminal has; without one, in 80."""
    console = Console(file=io.StringIO(), highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(Unpadded(what), end='')
    return capture.get().rstrip('\n')


def as_html(what: RenderableType) -> str:
    """The same for a notebook: headings, lines and tables, without scripts.

    >>> as_html(Text('a < b', style='bold'))
    '<div><p style="margin:0"><strong>a &lt; b</strong></p></div>'
    """
    return f'<div>{"".join(_html(what))}</div>'


def _html(what: RenderableType) -> Iterator[str]:
    if isinstance(what, Group):
        for each in what.renderables:
            yield from _html(each)
    elif isinstance(what, Padding):
        yield f'<div style="padding-left:{what.left}em">{"".join(_html(what.renderable))}</div>'
    elif isinstance(what, Table):
        if what.title:
            yield from _html(Text(_plain(what.title), style='bold'))
        yield _table(what)
    elif isinstance(what, Text):
        yield _line(what)
    elif isinstance(what, Output):
        yield f'<pre style="{_OUTPUT}">{_escaped(what.plain)}</pre>'
    else:  # a line that is indented by hand
        yield _line(Text(_plain(what)))


def _line(text: Text) -> str:
    inside = _escaped(text.plain) or '&nbsp;'
    return f'<p style="{_LINE}">{f"<strong>{inside}</strong>" if text.style == "bold" else inside}</p>'


def _table(table: Table) -> str:
    sides = [column.justify if column.justify in ('left', 'right', 'center') else 'left' for column in table.columns]

    def row(tag: str, cells: list[RenderableType]) -> str:
        inside = (
            f'<{tag} style="{_CELL.format(side)}">{_escaped(_plain(cell))}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f'<tr style="background:transparent">{"".join(inside)}</tr>'

    head = f'<thead>{row("th", [column.header for column in table.columns])}</thead>' if table.show_header else ''
    rows = [row('td', list(cells)) for cells in zip(*(column.cells for column in table.columns), strict=True)]
    return f'<table style="{_TABLE}">{head}<tbody>{"".join(rows)}</tbody></table>'


def _plain(what: RenderableType) -> str:
    if isinstance(what, (str, Text)):
        return str(what)
    console = Console(file=io.StringIO(), highlight=False, color_system=None, width=_WIDTH)
    with console.capture() as capture:
        console.print(what)
    return ' '.join(capture.get().split())


def _escaped(text: str) -> str:
    return html.escape('\n'.join(map(printable, text.split('\n'))))
