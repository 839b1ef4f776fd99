"""A window of counted FLOPs as JSON, and as a plain-text table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from composer_memprof.report.text.plain_columns import columns, share

_ROWS = 20


def write_json(data: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(data, indent=1) + '\n', encoding='utf-8')


def write_text(data: Mapping[str, Any], path: Path) -> None:
    path.write_text(flops_text(data), encoding='utf-8')


def flops_text(data: Mapping[str, Any]) -> str:
    """The JSON of ``Flops`` for people; of long lists the first rows."""
    batches, device, formula = data['batches'], data['device'], data['formula']
    lines = [
        f'FLOPs of a {data["stage"]} batch on rank {data["rank"]}; '
        f'of {batches["all"]} batches {batches["traced"]} traced, {batches["timed"]} timed',
        '',
    ]
    rows = [
        ('model FLOPs', human_flops(data['batch_flops']), 'forward and backward, nothing twice'),
        ('  forward', human_flops(data['forward_flops']), ''),
        ('  backward', human_flops(data['backward_flops']), ''),
        ('recomputed', human_flops(data['recomputed_flops']), 'by checkpoints, and by attention that keeps no scores'),
        ('optimizer', human_flops(data['optimizer_flops']), ''),
        ('hardware FLOPs', human_flops(data['hardware_flops']), 'all of these'),
        ("the device's peak", human_flops(device['peak_flops'], '/s'), f'{device["name"]}; {device["peak_source"]}'),
        ('MFU', _percent(data['mfu']), f'model FLOPs a second, of the peak{_doubt(data["mfu"])}'),
        ('HFU', _percent(data['hfu']), 'hardware FLOPs a second, of the peak'),
        ('batches a second', _number(data['actual_batches_per_sec']), ''),
        ('at most', _number(data['max_batches_per_sec']), 'at the peak'),
    ]
    if formula is not None:
        rows.append(('model FLOPs by formula', human_flops(formula['batch_flops']), formula['source']))
        rows.append(('MFU by formula', _percent(formula['mfu']), ''))
    if data['all_ranks_estimate'] is not None:
        estimate = human_flops(data['all_ranks_estimate']['batch_flops'])
        rows.append(('all ranks, estimated', estimate, f"this rank's, times {data['world_size']}"))
    lines += columns(rows)
    lines += data['notes']
    if data['batch_flops'] is None:
        return '\n'.join(lines) + '\n'
    lines += _section('By module (with its submodules)', data['modules'], data['batch_flops'])
    lines += _section('By operation', data['operations'], data['batch_flops'])
    untracked = data['untracked_operations']
    if untracked:
        lines += ['', f'Operations without a formula, {data["untracked_calls"]} calls']
        lines += columns([(row['name'], str(row['calls']), '') for row in untracked[:_ROWS]])
        lines += _rest(untracked)
    return '\n'.join(lines) + '\n'


def _section(title: str, rows: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    found = [row for row in rows if row['flops'] or row['recomputed_flops'] or row['optimizer_flops']]
    head = ('', 'model', 'share', 'forward', 'backward', 'recomputed', 'calls', '')
    shown = [
        (
            row['name'] or '(the model)',
            human_flops(row['flops']),
            share(row['flops'], total),
            *(human_flops(row[phase]) for phase in ('forward_flops', 'backward_flops', 'recomputed_flops')),
            str(row['calls']),
            row.get('type', ''),
        )
        for row in found[:_ROWS]
    ]
    return ['', title, *columns([head, *shown]), *_rest(found)] if found else []


def _rest(rows: Sequence[Any]) -> list[str]:
    return [f'  … and {len(rows) - _ROWS} more'] if len(rows) > _ROWS else []


def human_flops(count: Optional[float], per: str = '') -> str:
    """``'1.5 GFLOP'`` of 1500000000."""
    if count is None:
        return 'unknown'
    size, unit = float(count), ''
    for unit in ('', 'K', 'M', 'G', 'T', 'P'):
        if size < 1000 or unit == 'P':
            break
        size /= 1000
    return f'{size:.4g} {unit}FLOP{per}'


def _doubt(mfu: Optional[float]) -> str:
    """More than all there is: the peak was measured while the machine was busy, or is not this device's."""
    return '; over 100 %, so that the peak is too low: give peak_flops' if mfu is not None and mfu > 1 else ''


def _percent(value: Optional[float]) -> str:
    return 'unknown' if value is None else f'{100 * value:.1f} %'


def _number(value: Optional[float]) -> str:
    return 'unknown' if value is None else f'{value:.4g}'
