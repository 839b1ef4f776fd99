"""Bytes, seconds and FLOPs as text."""

from __future__ import annotations

from composer_memprof.messages import human_bytes


def amount(value: float, unit: str) -> str:
    """A value of ``unit``: ``'bytes'``, ``'seconds'`` or ``'flops'``.

    >>> amount(1610612736, 'bytes'), amount(0.25, 'seconds'), amount(2.5e12, 'flops')
    ('1.5 GiB', '250.0 ms', '2.5 TFLOP')
    """
    if unit == 'bytes':
        return human_bytes(value)
    if unit == 'seconds':
        return f'{value:.2f} s' if value >= 1 else f'{1000 * value:.1f} ms'
    size, prefix = float(value), ''
    for prefix in ('', 'K', 'M', 'G', 'T', 'P'):
        if abs(size) < 1000 or prefix == 'P':
            break
        size /= 1000
    return f'{size:.1f} {prefix}FLOP'
