"""What a search for the fastest config found, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from composer_memprof.messages import count_of, human_bytes, printable
from composer_memprof.plans.fastest.result import Attempt, Fastest
from composer_memprof.plans.output.wrapping import Indented
from composer_memprof.simulation.step_time import seconds_in_words, speed_in_words
from composer_memprof.simulation.verdict import NOT_SEEN, TIGHT

_BARELY = 'barely: with less than 5 % to spare'
_ASSUMED = (
    'Not tried is what could not be faster or would not fit, if a larger microbatch is never slower and never needs less '
    'memory, and if what saves memory never makes a step faster.'
)


def fastest_text(found: Fastest) -> Iterator[RenderableType]:
    """What was tried, and the best configs to paste."""
    batch = count_of(found.batch_samples, 'sample')
    yield Text()
    yield Text(f'The fastest that fits, with {batch} of a rank in a step', style='bold')
    if not found.best:
        yield Indented('None of the configs that were tried fits and could be timed.')
    for attempt in found.best[:1]:
        yield Indented(printable(_in_words(attempt)))
    yield Text()
    yield Text(
        f'What was tried: {len(found.tried)} of {count_of(found.candidates, "config")}, in {found.seconds:.0f} s',
        style='bold',
    )
    yield _table(found)
    if any(attempt.verdict == TIGHT for attempt in found.tried):
        yield Text(_BARELY)
    yield Text(_ASSUMED)
    if found.best:
        yield Text()
        which = f'The best {len(found.best)} of those tried, to paste' if len(found.best) > 1 else 'To paste'
        yield Text(which, style='bold')
    for attempt in found.best:
        for line in (_in_words(attempt), *(f'in the code of the model: {each}' for each in attempt.in_code)):
            yield Indented(printable(line), '# ', '# ')  # so that the whole can be pasted
        yield Text('\n'.join(map(printable, attempt.config.splitlines())))


def _in_words(attempt: Attempt) -> str:
    speed = '' if attempt.time is None else f'{speed_in_words(attempt.time)}, '
    return f'{speed}{human_bytes(attempt.reserved)} reserved: {attempt.name}'


def _whether_it_fits(attempt: Attempt) -> str:
    if attempt.error:
        return f'{NOT_SEEN}: {attempt.error}'
    return 'no' if not attempt.fits else 'barely' if attempt.verdict == TIGHT else 'yes'


def _table(found: Fastest) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column('config', overflow='fold')
    for name in ('a step', 'speed', 'reserved'):
        table.add_column(name, justify='right', no_wrap=True)
    table.add_column('fits', overflow='fold')
    for attempt in found.tried:
        time = attempt.time
        table.add_row(
            printable(attempt.name),
            '' if time is None else seconds_in_words(time.step_seconds),
            '' if time is None else speed_in_words(time),
            human_bytes(attempt.reserved) if attempt.fits else '',
            printable(_whether_it_fits(attempt)),
        )
    return table
