"""The figures of a memray capture as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_memprof.messages import human_bytes

_ROWS = 15


def memray_text(data: Mapping[str, Any]) -> str:
    """The JSON of ``Memray`` for people; of long lists the first rows."""
    allocated = data['allocated_bytes']
    lines = [
        f'Host allocations on rank {data["rank"]}, up to batch {data["batch"]}: {data["seconds"]:.2f} s',
        '',
        f'  allocations  {data["allocations"]}'
        + (f', {human_bytes(allocated)} in all' if allocated is not None else ''),
        f'  at the peak  {human_bytes(data["peak_bytes"])}, of what was allocated meanwhile',
        f'  left over    {human_bytes(data["left_bytes"])}, not freed by the end',
    ]
    if data['allocators']:
        counts = sorted(data['allocators'].items(), key=lambda item: -item[1])
        lines.append(f'  through      {", ".join(f"{name.lower()} {count}" for name, count in counts)}')
    for title, places in (('Held at the peak', data['at_peak']), ('Left over', data['left'])):
        lines += _section(title, places)
    return '\n'.join(lines) + '\n'


def _section(title: str, places: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        f'  {human_bytes(place["bytes"]):>10}  {place["allocations"]:>8}x  {place["function"]}  {_where(place)}'.rstrip()
        for place in places[:_ROWS]
    ]
    rest = [f'  … and {len(places) - _ROWS} more'] if len(places) > _ROWS else []
    return ['', title, *rows, *rest] if rows else []


def _where(place: Mapping[str, Any]) -> str:
    return f'{place["file"]}:{place["line"]}' if place['file'] else ''
