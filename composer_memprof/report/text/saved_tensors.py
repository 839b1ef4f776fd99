"""A window of saved tensors as a plain-text table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_memprof.messages import human_bytes
from composer_memprof.report.text.plain_columns import columns, share

_ROWS = 20


def saved_tensors_text(data: Mapping[str, Any]) -> str:
    """The JSON of ``SavedTensorsHook`` for people; of long lists the first rows."""
    total = data['total_bytes']
    lines = [
        f'Saved for backward on rank {data["rank"]}, in batch {data["largest_batch"]}, '
        f'the largest of {len(data["batches"])} recorded',
        '',
        *columns(
            [
                ('activations', human_bytes(total), f'{total} B, each storage once, over {data["forwards"]} forward calls'),
                ('their peak', human_bytes(data['peak_bytes']), 'held at one time'),
                ('recomputed', human_bytes(data['recomputed_bytes']), 'in the backward pass, by checkpoints'),
                ('parameters', human_bytes(data['parameter_bytes']), ''),
                ('buffers', human_bytes(data['buffer_bytes']), ''),
                ('inputs', human_bytes(data['input_bytes']), ''),
                ('packed', human_bytes(data['packed_bytes']), "every save but a Parameter's, also of the same storage"),
                ('left over', human_bytes(data['left_bytes']), 'still held when the batch was over'),
            ]
        ),
    ]  # fmt: skip
    for title, rows in (
        ('By module (without its submodules)', [(_name(row), row['bytes'], row['type']) for row in data['modules']]),
        ('By operation', [(row['name'], row['bytes'], '') for row in data['operations']]),
        (
            'By dtype and shape',
            [(f'{row["dtype"]} {list(row["shape"])}', row['bytes'], row['device']) for row in data['shapes']],
        ),
    ):
        lines += _section(title, [(name, size, share(size, total), more) for name, size, more in rows if size])
    lines += _section(
        'What checkpointing one module would free, and about what running it again costs',
        [
            (_name(row), row['frees_bytes'], share(row['frees_bytes'], total), f'{row["recompute_ms"]:.2f} ms')
            for row in data['checkpoints']
        ],
    )
    if data['unseen']:
        lines += ['', 'Not seen']
        for what, names in data['unseen'].items():
            lines.append(f'  {what}' + (f': {", ".join(name or "(the model)" for name in names)}' if names else ''))
    return '\n'.join(lines) + '\n'


def _name(row: Mapping[str, Any]) -> str:
    return row['name'] or '(the model)'


def _section(title: str, rows: Sequence[tuple[str, int, str, str]]) -> list[str]:
    if not rows:
        return []
    shown = [(name, human_bytes(size), share, more) for name, size, share, more in rows[:_ROWS]]
    rest = [f'  … and {len(rows) - _ROWS} more'] if len(rows) > _ROWS else []
    return ['', title, *columns(shown), *rest]
