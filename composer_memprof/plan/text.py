"""The terminal output of ``plan``: the verdict first, then what fills the memory, then what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from composer_memprof.messages import human_bytes, printable
from composer_memprof.plan.planning import Plan, Row
from composer_memprof.plan.trial import Share
from composer_memprof.simulated_gpu.outside import in_words
from composer_memprof.vocabulary import CATEGORY_LABELS

#: Most categories and modules that are shown, and their smallest share of the peak.
_MOST, _SMALLEST = 6, 0.005


def plan_text(plan: Plan) -> RenderableType:
    """The whole output."""
    parts: list[RenderableType] = [Text(_verdict(plan), style='bold')]
    if plan.outcome.error:
        return Group(*parts, Text(printable(plan.outcome.error)))
    parts += [Padding(Text(line), (0, 0, 0, 2)) for line in _facts(plan)]
    parts += [Text(), *_shares('At the peak, by category', plan.outcome.categories, plan.outcome.allocated)]
    parts += [Text(), *_shares('At the peak, by module', plan.outcome.modules, plan.outcome.allocated)]
    if plan.changes:
        parts += [Text(), Text('What to change, each tried', style='bold'), _table(plan.changes, 'change')]
        parts += [Text(), *_how(plan.changes)]
    if plan.grid:
        parts += [Text(), Text('Variations', style='bold'), _table(plan.grid, 'variation')]
    return Group(*parts)


def _verdict(plan: Plan) -> str:
    where = f'simulated {plan.gpu}' + (f', one of {plan.ranks} ranks' if plan.ranks > 1 else '')
    if plan.outcome.error:
        return f'{where}: the config does not run'
    available = plan.total - sum(plan.outside.values())
    needs = f'Needs {human_bytes(plan.outcome.reserved)} of {human_bytes(available)}'
    if plan.fits:
        return f'{where}: fits. {needs}'
    return f'{where}: does not fit. {needs}'


def _facts(plan: Plan) -> Iterator[str]:
    outcome = plan.outcome
    when = f'in {outcome.phase} of batch {outcome.batch}' if outcome.phase else 'at an unknown time'
    yield f'at most {human_bytes(outcome.allocated)} allocated, {when}, with {outcome.microbatch} samples in a microbatch'
    if outcome.setup > outcome.allocated:
        yield f'{human_bytes(outcome.setup)} before the first batch, while the model came to the device'
    largest = plan.largest_microbatch
    if largest is not None:
        limit = f', limited by {printable(largest.limit)}' if largest.limit else ''
        yield (
            f'the largest microbatch that fits: {largest.samples} samples{limit}'
            if largest.samples
            else 'no microbatch fits, not even of one sample'
        )
    yield f"allowed for outside of torch's allocator: {in_words(plan.outside)}"
    if outcome.host_model:
        yield f'{human_bytes(outcome.host_model)} of host memory while the model is built'


def _shares(title: str, shares: Sequence[Share], whole: int) -> Iterator[RenderableType]:
    yield Text(title, style='bold')
    shown = [share for share in shares[:_MOST] if share.bytes >= _SMALLEST * whole]
    for share in shown:
        name = CATEGORY_LABELS.get(share.name, share.name) or 'none or unknown'
        yield Text(f'{human_bytes(share.bytes):>12} {share.bytes / max(whole, 1):5.0%}  {printable(name)}')


def _table(rows: Sequence[Row], first: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, overflow='fold')
    for name in ('peak', 'less', 'reserved'):
        table.add_column(name, justify='right', no_wrap=True)
    table.add_column('fits', no_wrap=True)
    table.add_column('cost', overflow='fold')
    for row in rows:
        if row.outcome.error:
            table.add_row(printable(row.name), '', '', '', 'no', printable(f'does not run: {row.outcome.error}'))
            continue
        table.add_row(
            printable(row.name),
            human_bytes(row.outcome.allocated),
            human_bytes(row.saved),
            human_bytes(row.outcome.reserved),
            'yes' if row.outcome.fits else 'no',
            row.cost,
        )
    return table


def _how(rows: Sequence[Row]) -> Iterator[Text]:
    for row in rows:
        if row.how and not row.outcome.error and row.saved > _SMALLEST * row.outcome.allocated:
            yield Text(f'{row.name}: {printable(row.how)}', style='dim')
