"""What ``simulate`` returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from composer_memprof.interface.shown import Output, Shown
from composer_memprof.messages import human_bytes
from composer_memprof.simulation.output.text import search_text
from composer_memprof.simulation.output.whole import next_line, output_text, search_dict, simulation_dict
from composer_memprof.simulation.result import SimulationResult
from composer_memprof.simulation.search import Search
from composer_memprof.simulation.step_time import StepTime
from composer_memprof.simulation.versus import Versus

#: Lines of a failed command's output that are shown.
_TAIL = 20


@dataclass(frozen=True)
class Simulated(Shown):
    """What a simulated function or command came to. Sizes are in bytes.

    ``print`` shows it as ``composer-memprof simulate`` does, a notebook as tables, and :meth:`to_dict` is what ``--json``
    prints.

    Attributes:
        result: every figure, by process and device.
        versus: the comparison with a recording; None if none was asked for, or the run left nothing to compare.
        compares: whether one was asked for.
        output: the end of what the function or command printed.
    """

    result: SimulationResult
    versus: Optional[Versus] = None
    compares: bool = False
    output: str = ''

    @property
    def fits(self) -> Optional[bool]:
        """Whether it fits; None if too little was seen to tell."""
        return self.result.fits

    @property
    def verdict(self) -> str:
        """In words: ``'fits'``, ``'fits with less than 5 % to spare'``, ``'does not fit'`` or ``'not seen'``."""
        return self.result.verdict

    @property
    def allocated(self) -> int:
        """The most in blocks that one process had on one device."""
        return max((device.allocated for process in self.result.processes for device in process.devices), default=0)

    @property
    def reserved(self) -> int:
        """The most that one process took of one device: what it needs."""
        return self.result.reserved

    @property
    def available(self) -> int:
        """What torch's allocator can have of a device."""
        return self.result.available

    @property
    def time(self) -> Optional[StepTime]:
        """How long a step takes, and on what; None if it is not known."""
        return self.result.time

    @property
    def snapshot(self) -> Optional[Path]:
        """The recording, for ``load_snapshot``; None if there is none."""
        return self.result.snapshot

    def text(self) -> RenderableType:
        return output_text(self.result, self.versus)

    def tables(self) -> RenderableType:
        verdict, *facts = _parts(self.text())
        tail = self._tail()
        return Group(verdict, *_peaks(self.result), *facts, *([Output(tail)] if tail else []))

    def to_dict(self) -> dict[str, Any]:
        """What ``composer-memprof simulate --json`` prints."""
        return simulation_dict(self.result, self.compares, self.versus)

    def __str__(self) -> str:
        """What the command prints; before it, the end of the output if it failed."""
        return '\n'.join(filter(None, [self._tail(), super().__str__(), next_line(self.result)]))

    def _tail(self) -> str:
        return '\n'.join(self.output.rstrip().split('\n')[-_TAIL:]) if self.result.failed else ''


@dataclass(frozen=True)
class Searched(Shown):
    """The largest number that fits. Shown as ``composer-memprof simulate --largest`` does; a table in a notebook.

    Attributes:
        search: every number that was tried, with its figures.
    """

    search: Search

    @property
    def largest(self) -> int:
        """The largest number that fits; 0 if none does."""
        return self.search.largest

    def text(self) -> RenderableType:
        return search_text(self.search)

    def to_dict(self) -> dict[str, Any]:
        """What ``composer-memprof simulate --largest … --json`` prints."""
        return search_dict(self.search)


def _parts(what: RenderableType) -> Iterator[RenderableType]:
    """The lines and tables, out of their groups."""
    if isinstance(what, Group):
        for each in what.renderables:
            yield from _parts(each)
    else:
        yield what


def _peaks(result: SimulationResult) -> Iterator[RenderableType]:
    if not any(process.devices for process in result.processes):
        return
    table = Table()
    for name in ('rank', 'GPU', 'steps', 'allocated', 'reserved'):
        table.add_column(name, justify='right')
    for process in result.processes:
        for device in process.devices:
            sizes = map(human_bytes, (device.allocated, device.reserved))
            table.add_row(str(process.rank), str(device.device), str(process.steps), *sizes)
    yield table
    yield Text()
