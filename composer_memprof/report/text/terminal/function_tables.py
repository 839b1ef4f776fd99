"""The terminal output of ``inspect`` for MemProfiler's readings: growth by function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from composer_memprof.analysis.function_growth import FunctionGrowth
from composer_memprof.messages import human_bytes

#: Most functions.
_SHOWN = 40
_KINDS = (('allocated', 'allocated on CUDA'), ('rss', 'resident memory'), ('saved', 'saved by autograd'))


def function_growth_text(functions: Sequence[FunctionGrowth]) -> RenderableType:
    """A table for each kind of memory that was read, the functions that raised it most first."""
    parts: list[RenderableType] = []
    for kind, title in _KINDS:
        rows = [(sum(changes), changes, one) for one in functions if (changes := _changes(one, kind))]
        if not any(total for total, _, _ in rows):
            continue
        parts += [_table(title, sorted(rows, key=lambda row: -row[0])), Text()]
    if not parts:
        parts.append(Text('No function was read at both its start and its end, or none changed its memory.'))
    else:
        parts.append(Text('What a function that is called within another one adds counts in both.', style='dim'))
    return Group(*parts)


def _changes(one: FunctionGrowth, kind: str) -> list[int]:
    found: list[Optional[int]] = [getattr(call, kind) for call in one.calls]
    return [change for change in found if change is not None]


def _table(title: str, rows: Sequence[tuple[int, list[int], FunctionGrowth]]) -> Table:
    several = len({one.rank for _, _, one in rows}) > 1
    table = Table(
        title=Text(f'Growth by function: {title}', style='bold'),
        title_justify='left',
        box=None,
        header_style='dim',
        padding=(0, 2, 0, 0),
    )
    for name in ('all calls', 'calls', 'a call', 'largest', 'grew in'):
        table.add_column(name, justify='right', no_wrap=True)
    table.add_column('function', overflow='fold')
    for total, changes, one in rows[:_SHOWN]:
        name = f'rank {one.rank}: {one.function}' if several else one.function
        table.add_row(
            _signed(total),
            str(len(changes)),
            _signed(total // len(changes)),
            _signed(max(changes)),
            f'{sum(change > 0 for change in changes)} of {len(changes)}',
            Text(name),
        )
    if len(rows) > _SHOWN:
        table.add_row(
            _signed(sum(total for total, _, _ in rows[_SHOWN:])), '', '', '', '', f'{len(rows) - _SHOWN} more'
        )
    return table


def _signed(change: int) -> str:
    return f'{"+" if change > 0 else ""}{human_bytes(change)}'
