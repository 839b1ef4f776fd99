"""The terminal output of ``plan``: the verdict first, then what fills the memory, then what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from composer_memprof.messages import count_of, human_bytes, printable
from composer_memprof.plans.fastest.text import fastest_text
from composer_memprof.plans.output.wrapping import Indented
from composer_memprof.plans.result import Plan, Row
from composer_memprof.plans.trial import Outcome, Share
from composer_memprof.simulated_gpu.outside import in_words
from composer_memprof.simulation.step_time import difference, time_in_words
from composer_memprof.simulation.verdict import NOT_SEEN, margin
from composer_memprof.vocabulary import CATEGORY_LABELS

#: Most categories and modules that are shown, and their smallest share of the peak.
_MOST, _SMALLEST = 6, 0.005


def plan_text(plan: Plan) -> RenderableType:
    """The whole output."""
    parts: list[RenderableType] = [Text(_verdict(plan), style='bold')]
    if plan.outcome.error:
        return Group(*parts, Text(printable(plan.outcome.error)))
    parts += [Indented(line) for line in _facts(plan)]
    parts += [Text(), *_shares('At the peak, by category', plan.outcome.categories, plan.outcome.allocated)]
    parts += [Text(), *_shares('At the peak, by module', plan.outcome.by_block, plan.outcome.allocated)]
    if plan.changes:
        together = [] if plan.combination is None else [plan.combination]
        parts += [
            Text(),
            Text('What to change, each tried', style='bold'),
            _table(plan.changes, 'change', plan.outcome),
        ]
        if plan.combination is not None:
            fits = 'these fit together' if plan.combination.outcome.fits else 'together they do not either, at best'
            parts += [
                Text(),
                Text(f'None of them fits alone; {fits}', style='bold'),
                _table(together, 'changes', plan.outcome),
            ]
        parts += [Text(), Text('What to write', style='bold'), *_how([*plan.changes, *together])]
        parts += _errors(plan.changes)
        if plan.not_tried:
            parts += [Text(), Text('Not tried', style='bold'), *map(Indented, plan.not_tried)]
    if plan.grid:
        parts += [Text(), Text('Variations', style='bold'), _table(plan.grid, 'variation', plan.outcome)]
        parts += _errors(plan.grid)
    if plan.fastest is not None:
        parts += fastest_text(plan.fastest)
    return Group(*parts)


def _verdict(plan: Plan) -> str:
    where = f'simulated {plan.gpu}' + (f', one of {plan.ranks} ranks' if plan.ranks > 1 else '')
    if plan.outcome.error:
        return f'{where}: {plan.verdict}: the config does not run'
    return f'{where}: {plan.verdict}. Needs {human_bytes(plan.outcome.reserved)} of {human_bytes(plan.available)}'


def _facts(plan: Plan) -> Iterator[str]:
    outcome = plan.outcome
    when = f'in {outcome.phase} of batch {outcome.batch}' if outcome.phase else 'at an unknown time'
    yield f'at most {human_bytes(outcome.allocated)} allocated, {when}, with {_count(outcome.microbatch)} in a microbatch, {outcome.precision}'
    if outcome.setup > outcome.allocated:
        yield f'{human_bytes(outcome.setup)} before the first batch, while the model came to the device'
    largest = plan.largest_microbatch
    if largest is not None:
        limit = f', limited by {printable(largest.limit)}' if largest.limit else ''
        if not largest.samples:
            yield 'no microbatch fits, not even of one sample'
        elif largest.next_tried is None or largest.next_tried == largest.samples + 1:
            yield f'the largest microbatch that fits: {_count(largest.samples)}{limit}'
        else:
            above = f'{largest.next_tried} {"does not run" if limit else "does not fit"}'
            yield f'the largest microbatch that fits of those tried: {_count(largest.samples)}{limit}; {above}'
    if outcome.time is not None:
        yield from map(printable, time_in_words(outcome.time, plan.gpu))
    yield f"allowed for outside of torch's allocator: {in_words(plan.outside)}"
    yield from (f'assumed: {printable(line)}' for line in outcome.assumed)
    yield from _of_evaluation(plan)
    yield margin(plan.torch)
    if outcome.limited_by_batch:
        yield f'warning: {outcome.limited_by_batch}'
    if outcome.all_sent:
        yield _sent(outcome)
    if outcome.host_model:
        yield f'{human_bytes(outcome.host_model)} of host memory while the model is built'
    if outcome.one_unit:
        part = outcome.blocks or 'module'
        yield (
            f'warning: FSDP gathers the parameters of every {part} at once, since {printable(outcome.one_unit)} is one '
            f'unit; set _fsdp_wrap = True on each {part}, or fsdp_wrap_fn on the child of the ComposerModel'
        )


def _of_evaluation(plan: Plan) -> Iterator[str]:
    outcome = plan.outcome
    if not plan.with_evaluation:
        yield 'an evaluation or a checkpoint may take more; --eval tries both'
    elif not outcome.out_of_memory:
        evaluated = 'no evaluation (no eval_loader)'
        if outcome.evaluations:
            evaluated = count_of(outcome.evaluations, 'evaluation')
        yield f'with {evaluated} and {count_of(outcome.checkpoints, "checkpoint")}'


def _count(samples: int) -> str:
    return count_of(samples, 'sample')


def _sent(outcome: Outcome) -> str:
    kinds = ', '.join(
        f'{human_bytes(size)} in {name}' for name, size in outcome.sent.items() if size >= _SMALLEST * outcome.all_sent
    )
    between = (
        f'; {human_bytes(outcome.sent_between_nodes)} in groups that span nodes' if outcome.sent_between_nodes else ''
    )
    return f'a rank sends {human_bytes(outcome.all_sent)} a batch, if in rings: {kinds}{between}'


def _shares(title: str, shares: Sequence[Share], whole: int) -> Iterator[RenderableType]:
    yield Text(title, style='bold')
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(min_width=12, justify='right', no_wrap=True)
    table.add_column(min_width=5, justify='right', no_wrap=True)
    table.add_column(overflow='fold')
    for share in shares[:_MOST]:
        if share.bytes >= _SMALLEST * whole:
            name = CATEGORY_LABELS.get(share.name, share.name) or 'none or unknown'
            table.add_row(human_bytes(share.bytes), f'{share.bytes / max(whole, 1):.0%}', f' {printable(name)}')
    yield table


def _table(rows: Sequence[Row], first: str, base: Outcome) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, overflow='fold')
    for name in ('peak', 'less', 'reserved'):
        table.add_column(name, justify='right', no_wrap=True)
    table.add_column('fits', no_wrap=True)
    table.add_column('time', justify='right', no_wrap=True)
    table.add_column('cost', overflow='fold')
    for row in rows:
        if row.outcome.error:
            table.add_row(printable(row.name), '', '', '', '', '', NOT_SEEN)
            continue
        table.add_row(
            printable(row.name),
            human_bytes(row.outcome.allocated),
            human_bytes(row.saved),
            human_bytes(row.outcome.reserved),
            'yes' if row.outcome.fits else 'no',
            difference(row.outcome.time, base.time),
            row.cost,
        )
    return table


def _how(rows: Sequence[Row]) -> Iterator[RenderableType]:
    for row in rows:
        if row.how and not row.outcome.error:
            yield Indented(f'{row.name}: {printable(row.how)}')


def _errors(rows: Sequence[Row]) -> Iterator[RenderableType]:
    failed = [row for row in rows if row.outcome.error]
    if failed:
        yield from (Text(), Text('What was not seen', style='bold'))
    for row in failed:
        yield Indented(printable(f'{row.name}: {row.outcome.error}'))
