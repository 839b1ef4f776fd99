"""The saved tensors of a window as a plain-text table."""

from __future__ import annotations

from collections.abc import Sequence

from composer_memprof.messages import human_bytes
from composer_memprof.recorders.saved_tensors.recorder import SavedTensors
from composer_memprof.report.text.tables.head import WindowHead
from composer_memprof.report.text.tables.plain_columns import columns, share

_MAX_ROWS = 20


def saved_tensors_text(head: WindowHead, saved: SavedTensors) -> str:
    """The totals and lists as tables. Of a long list, the first 20 rows."""
    total = saved.total_bytes
    lines = [
        f'Tensors saved for backward on rank {head.rank}, batch {saved.largest_batch} '
        f'(the largest of {len(saved.batches)} recorded)',
        '',
        *columns(_totals(saved)),
    ]
    for title, rows in (
        (
            'By module, without its submodules',
            [(_module(module.name), module.bytes, module.type) for module in saved.modules],
        ),
        ('By operation', [(operation.name, operation.bytes, '') for operation in saved.operations]),
        (
            'By dtype and shape',
            [(f'{shape.dtype} {list(shape.shape)}', shape.bytes, shape.device) for shape in saved.shapes],
        ),
    ):
        lines += _section(title, [(name, size, share(size, total), more) for name, size, more in rows if size])
    lines += _section(
        'Checkpointing one module: memory it frees, and time of the extra forward pass',
        [
            (_module(each.name), each.frees_bytes, share(each.frees_bytes, total), f'{each.recompute_ms:.2f} ms')
            for each in saved.checkpoints
        ],
    )
    if saved.unseen:
        lines += ['', 'Not visible to the hooks']
        for what, names in saved.unseen.items():
            lines.append(f'  {what}' + (f': {", ".join(map(_module, names))}' if names else ''))
    return '\n'.join(lines) + '\n'


def _totals(saved: SavedTensors) -> list[tuple[str, str, str]]:
    total = saved.total_bytes
    return [
        ('activations', human_bytes(total), f'{total} B, each storage once; forward calls: {saved.forwards}'),
        ('peak', human_bytes(saved.peak_bytes), 'activations held at one time'),
        ('recomputed', human_bytes(saved.recomputed_bytes), 'saved again in backward by checkpoints'),
        ('parameters', human_bytes(saved.parameter_bytes), ''),
        ('buffers', human_bytes(saved.buffer_bytes), ''),
        ('inputs', human_bytes(saved.input_bytes), ''),
        ('packed', human_bytes(saved.packed_bytes), 'every save except of a Parameter; one storage may count several times'),
        ('left over', human_bytes(saved.left_bytes), 'still held after the batch'),
    ]  # fmt: skip


def _module(name: str) -> str:
    return name or '(the model)'


def _section(title: str, rows: Sequence[tuple[str, int, str, str]]) -> list[str]:
    if not rows:
        return []
    shown = [(name, human_bytes(size), part, more) for name, size, part, more in rows[:_MAX_ROWS]]
    rest = [f'  … and {len(rows) - _MAX_ROWS} more'] if len(rows) > _MAX_ROWS else []
    return ['', title, *columns(shown), *rest]
