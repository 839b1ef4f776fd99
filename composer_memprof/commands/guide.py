"""The guide, in the terminal."""

from __future__ import annotations

from typing import Optional

import typer

from composer_memprof.guide import pages
from composer_memprof.terminal import show


def guide(
    page: Optional[str] = typer.Argument(None, help='a page by its name; without it, all pages are listed'),
) -> None:
    """Print a page of the guide, such as what to do if a job just died.

    \b
    Examples:
      composer-memprof guide
      composer-memprof guide out-of-memory
    """
    from rich.markdown import Markdown
    from rich.table import Table

    found = {page.name: page for page in pages()}
    if page is None:
        table = Table.grid(padding=(0, 3))
        for name, each in found.items():
            table.add_row(name, each.title)
        show('Your job just died? composer-memprof guide index\n')
        show(table)
        return
    if page not in found:
        raise typer.BadParameter(f'there is no page {page!r}; there are {", ".join(found)}', param_hint='PAGE')
    show(Markdown(found[page].text, code_theme='ansi_dark', hyperlinks=False))
