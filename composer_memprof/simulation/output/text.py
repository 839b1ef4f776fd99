"""The terminal output of ``simulate``: the verdict first, then what it rests on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Optional

import psutil
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from composer_memprof.messages import count_of, human_bytes, printable
from composer_memprof.simulated_gpu.outside import in_words
from composer_memprof.simulation.guesses import guesses, unused_parts
from composer_memprof.simulation.peaks import Moment, ProcessPeaks
from composer_memprof.simulation.result import SimulationResult
from composer_memprof.simulation.search import Search
from composer_memprof.simulation.step_time import time_in_words
from composer_memprof.simulation.verdict import FOR_SOME_STEPS, NOT_SEEN, margin
from composer_memprof.simulation.versus import Event, Versus

_ON_HOST = (
    "A simulated GPU's memory takes no host memory, but a model that the script builds on the host does: build it under "
    "torch.device('cuda')"
)
#: More of the machine's memory is worth a sentence.
_MUCH_OF_HOST = 0.5


def simulation_text(result: SimulationResult) -> RenderableType:
    """The verdict, the peaks, what lies outside of torch's allocator, and what was assumed."""
    lines: list[Text] = [Text(_verdict(result), style='bold')]
    lines += [Text(line) for process in result.processes[:1] for line in _process(process, result)]
    if result.time is not None:
        lines += [Text(printable(line)) for line in time_in_words(result.time, result.gpu)]
    if any(process.devices for process in result.processes):
        lines.append(Text(f"Allowed for outside of torch's allocator: {in_words(result.outside)}"))
    lines += [Text(f'Assumed: {printable(line)}') for line in result.assumed]
    lines += [Text(printable(line)) for line in (*guesses(result.reads), *unused_parts(result.unused, result.reads))]
    lines += [Text(f'Not simulated: {printable(name)}') for name in result.not_simulated]
    if result.reserved:
        lines.append(Text(margin(result.torch)))
    return Group(*lines)


def next_command(result: SimulationResult) -> str:
    """What to type to see more; empty where nothing was recorded."""
    snapshots = [process.snapshot for process in result.processes if process.snapshot]
    return f'composer-memprof inspect {shlex.quote(printable(snapshots[0]))}' if snapshots else ''


def search_text(search: Search) -> RenderableType:
    """The largest number that fits, and each that was tried."""
    found = f'the largest number that fits is {search.largest}' if search.largest else 'not even 1 fits'
    if search.largest and search.limit:
        found = f'the largest that fits of those tried is {search.largest}; {printable(search.limit)}'
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ('number', 'allocated', 'reserved'):
        table.add_column(name, justify='right', no_wrap=True)
    table.add_column('fits', no_wrap=True)
    for each in search.tried:
        peaks = (human_bytes(each.allocated), human_bytes(each.reserved)) if each.fits else ('', '')
        fits = 'yes' if each.steps_that_fit is None else f'for about {each.steps_that_fit:,} steps'
        table.add_row(str(each.number), *peaks, fits if each.fits else 'fails' if each.error else 'no')
    return Group(
        Text(f'{_where(search)}: {found}', style='bold'),
        *([Text(printable(search.limit))] if search.limit and not search.largest else []),
        table,
        Text(f"torch's allocator can have {human_bytes(search.available)}"),
        Text(f"Allowed for outside of torch's allocator: {in_words(search.outside)}"),
        Text(margin(search.torch)),
    )


def versus_text(versus: Versus) -> RenderableType:
    """The peaks beside each other, and the first event that differs."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ('', 'simulated', 'recorded', 'error'):
        table.add_column(name, justify='right' if name else 'left', no_wrap=True)
    for name, simulated, recorded in (
        ('allocated', versus.simulated_allocated, versus.allocated),
        ('reserved', versus.simulated_reserved, versus.reserved),
    ):
        if simulated is not None and recorded:
            sizes = (human_bytes(simulated), human_bytes(recorded), f'{simulated / recorded - 1:+.3%}')
            table.add_row(name, *sizes)
    by = f', recorded with torch {printable(versus.torch)}' if versus.torch else ''
    return Group(
        Text(),
        Text(f'Against {printable(versus.recording)}{by}', style='bold'),
        table,
        *map(Text, _events(versus)),
    )


def _events(versus: Versus) -> Iterator[str]:
    if versus.same == versus.events:
        yield f'All {versus.events:,} allocations and frees of the recording are the same, in order'
        return
    yield f'The first {versus.same:,} of {versus.events:,} allocations and frees are the same'
    if versus.real is not None:
        yield f'Then the recording has {_in_words(versus.real)}'
        ended = 'Then the simulation has ended; --steps 0 lets the command end by itself'
        yield ended if versus.simulated is None else f'Then the simulation has {_in_words(versus.simulated)}'


def _in_words(event: Event) -> str:
    return f'{event.action} of {event.size:,} B' + (f' by {printable(event.line)}' if event.line else '')


def _where(result: SimulationResult | Search) -> str:
    rank, ranks = result.rank, result.ranks
    if ranks == 1 and isinstance(result, SimulationResult) and result.processes:  # a command may start ranks itself
        rank, ranks = result.processes[0].rank, result.processes[0].ranks
    among = f', rank {rank} of {ranks}' if ranks > 1 else ''
    return f'simulated {result.gpu}{among}'


def _verdict(result: SimulationResult) -> str:
    words = f'{_where(result)}: {result.verdict}'
    if result.verdict == NOT_SEEN:
        killed = f'. {_ON_HOST}' if 'signal 9' in result.unseen else ''
        return f'{words}: {result.unseen}{killed}'
    if result.verdict == FOR_SOME_STEPS:
        words = f'{_where(result)}: fits for about {result.steps_that_fit:,} steps: {result.reason}'
    elif not result.fits:
        return words
    return f'{words}. Needs {human_bytes(result.reserved)} of {human_bytes(result.available)}'


def _process(process: ProcessPeaks, result: SimulationResult) -> Iterator[str]:
    for device in process.devices:
        name = f'GPU {device.device}: ' if len(process.devices) > 1 else ''
        yield (
            f'{name}at most {human_bytes(device.allocated)} allocated and {human_bytes(device.reserved)} reserved '
            f'in {count_of(process.steps, "optimizer step")}'
        )
    if process.out_of_memory:
        yield printable(process.out_of_memory.split('. ')[1]) + _when(process.ran_out)
        if result.ran_out:
            yield _need(result)
    elif process.shortages:
        yield f'Memory ran out {_times(process.shortages)}; {printable(result.subject)} caught the error'
    elif result.failed:
        yield (
            'Values that follow from weights are guessed; a script that checks them may fail for that'
            if result.follows_values
            else 'Values read back from the device are zeros, for which a script may fail; without --no-values most are computed'
        )
    yield from _steps(process, result)
    host = f'{human_bytes(process.host)} of host memory in the process'
    if process.worker_count:
        host += f', {human_bytes(process.workers)} in its {count_of(process.worker_count, "DataLoader worker")}'
    yield host
    if process.host > _MUCH_OF_HOST * psutil.virtual_memory().total:
        yield _ON_HOST


def _steps(process: ProcessPeaks, result: SimulationResult) -> Iterator[str]:
    """What the steps that were run do not show."""
    if process.devices and not process.steps and not result.failed:
        ran = f', though backward ran {_times(process.backwards)}' if process.backwards else ''
        yield f'No optimizer stepped{ran}. Updates by hand are not counted as steps; --steps 0 judges the whole command'
    if process.ended_early and not result.with_evaluation:
        yield 'An evaluation or a checkpoint may come later; --eval runs until one of each was made'


def _need(result: SimulationResult) -> str:
    need, available = result.need, result.available
    if need is None:
        return f'To see how much it needs, add --find-need: {printable(result.subject)} then runs a second time, on a GPU with more memory'
    line = f'It needs {human_bytes(need.allocated)} allocated, {human_bytes(need.reserved)} reserved'
    if need.reserved > available:
        line += f'; {human_bytes(need.reserved - available)} more than this GPU has for it'
    if need.timed_out:
        line += '. That is up to the time limit, which ended the second run'
    elif need.exit_code:
        line += f'. That is up to where the second run failed with exit code {need.exit_code}'
    return line


def _when(moment: Optional[Moment]) -> str:
    if moment is None:
        return ''
    return f' in {moment.phase} of batch {moment.batch}' + (
        f', module {printable(moment.module)}' if moment.module else ''
    )


def _times(count: int) -> str:
    return 'once' if count == 1 else f'{count} times'
