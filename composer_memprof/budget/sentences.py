"""What a check found, in sentences: one line for each run, and one for each place that grew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from composer_memprof.budget.checking import ABOVE, NOT_RECORDED, WITHIN, Amount, Checked
from composer_memprof.budget.figures import Figures, Growth
from composer_memprof.budget.measures import MEASURES, Measure
from composer_memprof.messages import human_bytes, printable
from composer_memprof.report.text.places import library_frame_text
from composer_memprof.vocabulary import CATEGORY_LABELS

#: Most places that grew, and the smallest part of all growth that is shown.
_PLACES, _SMALLEST = 6, 0.01


def headline(checked: Checked) -> str:
    """What came of one run; where it is above its budget, first the place that grew most."""
    name = printable(checked.run.name)
    if checked.status == WITHIN:
        return f'{name}: within its budget'
    if checked.status == NOT_RECORDED:
        return f'{name}: not compared: {printable(checked.reason)}'
    holds_more = checked.status != ABOVE or checked.growth or any(amount.measure.of_memory for amount in checked.above)
    biggest = f'{growth(checked.grown[0], callers=False)}; ' if checked.grown and holds_more else ''
    if checked.status != ABOVE:
        return f'{name}: {checked.status}: {biggest}{printable(checked.reason)}'
    keeps = [f'memory grows by {human_bytes(checked.growth)} with each step'] if checked.growth else []
    amounts = ', '.join([*keeps, *map(_excess, checked.above)])
    unknown = f'; what grew is not known: {printable(checked.reason)}' if checked.reason else ''
    return f'{name}: above its budget: {biggest}{amounts}{unknown}'


def growth(change: Growth, *, callers: bool = True) -> str:
    """One place: ``1.0 GiB more by model.py:31 forward (activation, module head)``."""
    label = CATEGORY_LABELS.get(change.category, change.category)
    module = f', module {printable(change.module)}' if change.module else ''
    return f'{human_bytes(change.bytes)} more by {printable(place(change, callers))} ({printable(label)}{module})'


def place(change: Growth, callers: bool = True) -> str:
    """The line of the code that allocates, and what called it."""
    if not change.frames:
        return (
            f'backward or a call without a stack, while {change.module} ran'
            if change.module
            else 'a call without a stack'
        )
    calls = ' < '.join(frame.short() for frame in change.frames[: None if callers else 1])
    return calls if change.within is None else f'{calls} {library_frame_text(change.within)}'


def largest_growth(checked: Checked) -> Sequence[Growth]:
    """The places that are worth a line."""
    whole = sum(change.bytes for change in checked.grown)
    return [change for change in checked.grown[:_PLACES] if change.bytes >= _SMALLEST * whole]


def change_text(measure: Measure, before: float, now: float) -> str:
    """``+24.4 %``, or the figure where there was none.

    >>> change_text(MEASURES[0], 1000, 1244), change_text(MEASURES[0], 7, 7)
    ('+24.4 %', '0 %')
    """
    if before == now:
        return '0 %'
    return f'{100 * (now / before - 1):+.1f} %' if before else f'+{measure.show(now)}'


def recorded_lines(name: str, before: Figures | None, now: Figures, changes: Sequence[Growth]) -> Iterator[str]:
    """What ``--update`` says of one run: each figure with its change, and what grew most."""
    for measure in MEASURES:
        new = getattr(now, measure.key)
        if new is None:
            continue
        old = None if before is None else getattr(before, measure.key)
        was = '' if old is None else f', was {measure.show(old)} ({change_text(measure, old, new)})'
        yield f'{printable(name)}: {measure.show(new)} {measure.label}{was}'
    if before is not None and changes and before.allocated != now.allocated:
        yield f'{printable(name)}: {growth(changes[0], callers=False)}'


def _excess(amount: Amount) -> str:
    show = amount.measure.show
    before = '' if amount.recorded is None else f'{show(amount.recorded)} -> '
    return f'{amount.measure.label} {before}{show(amount.now)}, allowed {show(amount.allowed or 0)}'
