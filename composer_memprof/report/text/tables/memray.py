"""The statistics of a memray capture as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from composer_memprof.messages import human_bytes
from composer_memprof.recorders.python_calls.memray import FunctionAllocations, MemrayStatistics
from composer_memprof.report.text.tables.head import WindowHead

_MAX_ROWS = 15


def memray_text(head: WindowHead, statistics: MemrayStatistics) -> str:
    """The totals, and the functions that held most. Of a long list, the first 15 rows."""
    allocated, allocators = statistics.allocated_bytes, statistics.allocators
    lines = [
        f'Host allocations on rank {head.rank}, until batch {head.batch}, {statistics.seconds:.2f} s recorded',
        '',
        f'  allocations  {statistics.allocations}'
        + (f', {human_bytes(allocated)} in total' if allocated is not None else ''),
        f'  peak         {human_bytes(statistics.peak_bytes)}, of memory allocated in the window',
        f'  left over    {human_bytes(statistics.left_bytes)}, not freed by the end of the window',
    ]
    if allocators:
        counts = sorted(allocators.items(), key=lambda item: -item[1])
        lines.append(f'  allocators   {", ".join(f"{name.lower()} {count}" for name, count in counts)}')
    lines += _section('Held at the peak', statistics.at_peak)
    lines += _section('Left over', statistics.left)
    return '\n'.join(lines) + '\n'


def _section(title: str, functions: Sequence[FunctionAllocations]) -> list[str]:
    rows = [
        f'  {human_bytes(each.bytes):>10}  {each.allocations:>8}x  {each.function}  {_position(each)}'.rstrip()
        for each in functions[:_MAX_ROWS]
    ]
    rest = [f'  … and {len(functions) - _MAX_ROWS} more'] if len(functions) > _MAX_ROWS else []
    return ['', title, *rows, *rest] if rows else []


def _position(function: FunctionAllocations) -> str:
    return f'{function.file}:{function.line}' if function.file else ''
