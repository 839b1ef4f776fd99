"""Plain-text columns."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of aligned cells: the first and the last column to the left, the others to the right."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        '  '
        + '  '.join(
            cell.ljust(width) if i in (0, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def share(part: float, whole: float) -> str:
    """``'12.5 %'`` for 1 of 8; empty if ``whole`` is 0."""
    return f'{100 * part / whole:.1f} %' if whole else ''
