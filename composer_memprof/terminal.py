"""Output of the command: text and tables on stdout, messages on stderr."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from composer_memprof.messages import MemprofWarning, printable
from composer_memprof.redaction import redacted


def show(renderable: RenderableType) -> None:
    """Print to stdout, without the spaces that rich pads lines with."""
    Console(highlight=False).print(Unpadded(renderable), end='')


class Unpadded:
    """A text or table without the spaces that rich pads lines with."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._renderable, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                text, style, control = line.pop()
                line.append(Segment(text.rstrip(), style, control))
            yield from line
            yield Segment.line()


def say(message: str) -> None:
    """Write a message to the person who typed the command. It may quote a file that is not trusted, or a credential."""
    text = '\n'.join(map(printable, redacted(message).split('\n')))
    sys.stderr.write(f'composer-memprof: {text}\n')


def show_own_warnings_plainly() -> None:
    """Show a warning of this package as one line, without the file and line number that Python adds."""
    show = warnings.showwarning

    def plainly(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
        if issubclass(category, MemprofWarning):
            sys.stderr.write(f'{message}\n')
        else:
            show(message, category, *rest, **named)

    warnings.showwarning = plainly
