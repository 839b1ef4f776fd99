"""Lines that go on in a form of their own where a terminal is narrower than they are."""

from __future__ import annotations

import textwrap

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text


class Indented:
    """A line that is indented, and more so where it goes on.

    Args:
        first: what the line begins with.
        others: what it goes on with.
    """

    def __init__(self, line: str, first: str = '  ', others: str = '      ') -> None:
        self._line = line
        self._first = first
        self._others = others

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width, 20)
        for line in textwrap.wrap(
            self._line,
            width,
            initial_indent=self._first,
            subsequent_indent=self._others,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            yield Text(line, no_wrap=True, overflow='ignore')
