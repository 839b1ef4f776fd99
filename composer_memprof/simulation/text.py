"""The terminal output of ``simulate``: the verdict first, then what it rests on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Optional

from rich.console import Group, RenderableType
from rich.text import Text

from composer_memprof.messages import count_of, human_bytes, printable
from composer_memprof.simulated_gpu.outside import in_words
from composer_memprof.simulation.peaks import Moment, ProcessPeaks
from composer_memprof.simulation.run import Need, SimulationResult


def simulation_text(result: SimulationResult) -> RenderableType:
    """The verdict, the peaks, what lies outside of torch's allocator, and what was assumed."""
    lines: list[Text] = [Text(_verdict(result), style='bold')]
    lines += [Text(line) for process in result.processes[:1] for line in _process(process, result)]
    if any(process.devices for process in result.processes):
        lines.append(Text(f"Allowed for outside of torch's allocator: {in_words(result.outside)}"))
    lines += [Text(f'Assumed: {printable(line)}') for line in result.assumed]
    lines += [Text(f'Not simulated: {printable(name)}') for name in result.not_simulated]
    return Group(*lines)


def next_command(result: SimulationResult) -> str:
    """What to type to see more; empty where nothing was recorded."""
    snapshots = [process.snapshot for process in result.processes if process.snapshot]
    return f'composer-memprof inspect {shlex.quote(printable(snapshots[0]))}' if snapshots else ''


def _verdict(result: SimulationResult) -> str:
    where = f'simulated {result.gpu}'
    if result.ranks > 1:
        where += f', rank {result.rank} of {result.ranks}'
    if result.lost and not result.processes:
        return f'{where}: the command ended with exit code {result.exit_code} before it left its figures'
    if not any(process.devices or process.shortages for process in result.processes):
        return f'{where}: the command used no GPU memory'
    if not result.fits:
        return f'{where}: does not fit'
    if result.exit_code and not result.timed_out:
        return f'{where}: the command failed with exit code {result.exit_code}; up to there it fits'
    needed = max((device.reserved for process in result.processes for device in process.devices), default=0)
    return f'{where}: fits. Needs {human_bytes(needed)} of {human_bytes(result.available)}'


def _process(process: ProcessPeaks, result: SimulationResult) -> Iterator[str]:
    for device in process.devices:
        name = f'GPU {device.device}: ' if len(process.devices) > 1 else ''
        yield (
            f'{name}at most {human_bytes(device.allocated)} allocated and {human_bytes(device.reserved)} reserved '
            f'in {count_of(process.steps, "optimizer step")}'
        )
    if process.out_of_memory:
        yield printable(process.out_of_memory.split('. ')[1]) + _when(process.ran_out)
        yield _need(result.need, result.available)
    elif process.shortages:
        yield f'Memory ran out {_times(process.shortages)}; the command caught the error'
    elif result.exit_code and not result.timed_out:
        yield 'Values read back from the device are zeros; a script that checks them may fail for that'
    host = f'{human_bytes(process.host)} of host memory in the process'
    if process.worker_count:
        host += f', {human_bytes(process.workers)} in its {count_of(process.worker_count, "DataLoader worker")}'
    yield host


def _need(need: Optional[Need], available: int) -> str:
    if need is None:
        return (
            'To see how much it needs, add --find-need: the command then runs a second time, on a GPU with more memory'
        )
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
