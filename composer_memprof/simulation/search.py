"""The largest number in a command with which it fits: searched by running the command, not computed."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from typing import Optional

from composer_memprof.simulation.result import SimulatedMachine
from composer_memprof.simulation.run import Simulation, simulate
from composer_memprof.simulation.verdict import FOR_SOME_STEPS

#: In the command, where the number stands.
PLACE = '{}'
#: Of a command's output, what is read for its last line.
_END = 4096


@dataclasses.dataclass(frozen=True)
class Tried:
    """One run of the command.

    Attributes:
        number: that it ran with.
        fits: whether it ran and its memory sufficed. False too where nothing was seen; ``error`` then says why.
        allocated: the most in blocks of torch's allocator on a GPU, in bytes; if memory ran out, up to there.
        reserved: the most that it took from a GPU, in bytes; likewise.
        exit_code: the command's.
        steps_that_fit: about how many steps its memory suffices for, where it grows with each; else None.
        error: why nothing was seen, such as the last line of the command's output if it failed for another reason than
            memory, else ``''``.
    """

    number: int
    fits: bool
    allocated: int
    reserved: int
    exit_code: int
    error: str
    steps_that_fit: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Search(SimulatedMachine):
    """The end of a search.

    Attributes:
        most: the largest number that was allowed.
        largest: the largest number that fits; 0 if none does.
        tried: the runs, in the order of their numbers.
    """

    most: int
    largest: int
    tried: list[Tried]

    @property
    def limit(self) -> str:
        """What keeps a larger number from fitting if it is not the memory, in one line; else ``''``."""
        if self.largest == self.most:
            return f'{self.most + 1} was not tried'
        next_one = next(each for each in self.tried if each.number == self.largest + 1)
        return f'{next_one.number} fails for another reason: {next_one.error}' if next_one.error else ''


def largest_that_fits(
    command: Sequence[str], most: int, what: Simulation, report: Callable[[int], None] = lambda number: None
) -> Search:
    """Search the largest number, from 1 to ``most``, that can stand in the place of ``{}`` in a command.

    The range is halved until it is found: larger numbers are taken to need more memory. The output of the runs is not
    shown, and nothing is recorded.

    Args:
        report: called with each number before it is tried.

    Raises:
        ValueError: if the command has no ``{}``.
        CannotSimulateError: where no GPU can be simulated.
        OSError: if the command can't be started.
        KeyboardInterrupt: if a signal ended a run.
    """
    if not any(PLACE in word for word in command):
        raise ValueError(f'the command must contain {PLACE}, where the number is put in, such as batch_size={PLACE}')
    tried: list[Tried] = []
    low, high = 0, most + 1  # low fits, high does not or is not allowed
    while high - low > 1:
        middle = (low + high) // 2
        report(middle)
        tried.append(_run(command, middle, what))
        low, high = (middle, high) if tried[-1].fits else (low, middle)
    return Search(
        **what.machine(),
        most=most,
        largest=low,
        tried=sorted(tried, key=lambda each: each.number),
    )


def _run(command: Sequence[str], number: int, what: Simulation) -> Tried:
    words = [word.replace(PLACE, str(number)) for word in command]
    with tempfile.TemporaryFile() as output:
        result = simulate(words, what, None, stdout=output, stderr=output)
        output.seek(max(0, output.seek(0, 2) - _END))
        lines = output.read().decode(errors='replace').split('\n')
    if result.signal:
        raise KeyboardInterrupt
    devices = [device for process in result.processes for device in process.devices]
    last = next((line for line in reversed(lines) if line.strip()), '') if result.failed else ''
    return Tried(
        number=number,
        fits=bool(result.fits) or result.verdict == FOR_SOME_STEPS,
        allocated=max((device.allocated for device in devices), default=0),
        reserved=max((device.reserved for device in devices), default=0),
        exit_code=result.exit_code,
        error=(last or result.unseen) if result.unseen else '',
        steps_that_fit=result.steps_that_fit,
    )
