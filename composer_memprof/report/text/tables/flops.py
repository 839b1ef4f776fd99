"""The FLOPs of a window, for JSON and as a plain-text table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from composer_memprof.analysis.flops.summary import FlopsSummary
from composer_memprof.recorders.flops.recorder import BatchFlops, ModuleFlops, OperationFlops
from composer_memprof.report.text.tables.head import StageHead
from composer_memprof.report.text.tables.plain_columns import columns, share

_MAX_ROWS = 20


@dataclass(frozen=True)
class FlopsReport:
    """What ``Flops`` writes for one window.

    Args:
        head (StageHead): rank, epoch, batch, stage.
        world_size (int): number of ranks.
        summary (FlopsSummary): the counts and rates.
        notes (Sequence[str]): sentences for the reader, such as why nothing was counted.
    """

    head: StageHead
    world_size: int
    summary: FlopsSummary
    notes: Sequence[str] = ()

    @property
    def all_ranks_batch_flops(self) -> Optional[int]:
        """Rank 0's model FLOPs times the number of ranks; None on other ranks, or if nothing was counted."""
        flops = self.summary.flops
        return flops.batch_flops * self.world_size if self.head.rank == 0 and flops is not None else None

    def as_dict(self) -> dict[str, Any]:
        """As written to JSON."""
        all_ranks = self.all_ranks_batch_flops
        return {
            **self.head.as_dict(),
            'world_size': self.world_size,
            **self.summary.as_dict(),
            'all_ranks_estimate': {'batch_flops': all_ranks} if all_ranks is not None else None,
            'notes': list(self.notes),
        }


def flops_text(report: FlopsReport) -> str:
    """The report as a table. Of a long list, the first 20 rows."""
    head, summary = report.head, report.summary
    lines = [
        f'FLOPs of one {head.stage} batch on rank {head.rank}. '
        f'{summary.batches} batches in the window: {summary.traced} traced, {summary.timed} timed.',
        '',
        *columns(_totals(report)),
        *report.notes,
    ]
    flops = summary.flops
    if flops is not None:
        lines += _section('By module, with its submodules', flops.modules, flops.batch_flops)
        lines += _section('By operation', flops.operations, flops.batch_flops)
        lines += _untracked(flops)
    return '\n'.join(lines) + '\n'


def _totals(report: FlopsReport) -> list[tuple[str, str, str]]:
    summary = report.summary
    flops, peak, rates, formula = summary.flops, summary.peak, summary.rates, summary.formula

    def counted(name: str) -> str:
        return human_flops(getattr(flops, name) if flops is not None else None)

    rows = [
        ('model FLOPs', counted('batch_flops'), 'forward and backward, without recomputation'),
        ('  forward', counted('forward_flops'), ''),
        ('  backward', counted('backward_flops'), ''),
        ('recomputed', counted('recomputed_flops'), 'run again in backward, by checkpoints and fused attention'),
        ('optimizer', counted('optimizer_flops'), ''),
        ('hardware FLOPs', counted('hardware_flops'), 'model + recomputed + optimizer'),
        ('device peak', human_flops(peak.flops, '/s'), f'{peak.device}; {peak.source}'),
        ('MFU', _percent(rates.mfu), f'model FLOPs per second / device peak{_peak_is_too_low(rates.mfu)}'),
        ('HFU', _percent(rates.hfu), 'hardware FLOPs per second / device peak'),
        ('batches per second', _number(rates.actual_batches_per_sec), 'measured'),
        ('at most', _number(rates.max_batches_per_sec), 'batches per second at the device peak'),
    ]
    if formula is not None:
        rows.append(('model FLOPs by formula', human_flops(formula.flops.batch_flops), formula.source))
        rows.append(('MFU by formula', _percent(formula.mfu), ''))
    if report.all_ranks_batch_flops is not None:
        estimate = human_flops(report.all_ranks_batch_flops)
        rows.append(('all ranks, estimated', estimate, f'this rank x {report.world_size} ranks'))
    return rows


def _section(title: str, rows: Sequence[Union[ModuleFlops, OperationFlops]], total: int) -> list[str]:
    rows = [row for row in rows if row.flops or row.recomputed_flops or row.optimizer_flops]
    head = ('', 'model', 'share', 'forward', 'backward', 'recomputed', 'calls', '')
    shown = [
        (
            row.name or '(the model)',
            human_flops(row.flops),
            share(row.flops, total),
            human_flops(row.forward_flops),
            human_flops(row.backward_flops),
            human_flops(row.recomputed_flops),
            str(row.calls),
            row.type if isinstance(row, ModuleFlops) else '',
        )
        for row in rows[:_MAX_ROWS]
    ]
    return ['', title, *columns([head, *shown]), *_more(rows)] if rows else []


def _untracked(flops: BatchFlops) -> list[str]:
    rows = flops.untracked_operations
    if not rows:
        return []
    shown = [(row.name, str(row.calls), '') for row in rows[:_MAX_ROWS]]
    return ['', f'Operations without a formula: {flops.untracked_calls} calls', *columns(shown), *_more(rows)]


def _more(rows: Sequence[Any]) -> list[str]:
    return [f'  … and {len(rows) - _MAX_ROWS} more'] if len(rows) > _MAX_ROWS else []


def human_flops(count: Optional[float], per: str = '') -> str:
    """``'1.5 GFLOP'`` for 1500000000."""
    if count is None:
        return 'unknown'
    size, unit = float(count), ''
    for unit in ('', 'K', 'M', 'G', 'T', 'P'):
        if size < 1000 or unit == 'P':
            break
        size /= 1000
    return f'{size:.4g} {unit}FLOP{per}'


def _peak_is_too_low(mfu: Optional[float]) -> str:
    # The peak was measured on a busy machine, or is that of another device.
    return '; above 100 %, so the device peak is too low: set peak_flops' if mfu is not None and mfu > 1 else ''


def _percent(value: Optional[float]) -> str:
    return 'unknown' if value is None else f'{100 * value:.1f} %'


def _number(value: Optional[float]) -> str:
    return 'unknown' if value is None else f'{value:.4g}'
