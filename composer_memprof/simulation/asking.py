"""A simulation as the command and the Python entry ask for it: what is wrong with it is said before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from composer_memprof.artifacts.writing.writable import why_no_folder
from composer_memprof.simulation.need import simulate_and_find_need
from composer_memprof.simulation.result import SimulationResult
from composer_memprof.simulation.run import FOLDER, Simulation, as_one_rank, new_folder, simulate
from composer_memprof.simulation.search import Search, largest_that_fits
from composer_memprof.simulation.trace.files import check_trace_file
from composer_memprof.simulation.versus import Recording, Versus, compare, read_recording


class CannotStartError(Exception):
    """The command can't be started; the message is one line."""


@dataclass(frozen=True)
class Request:
    """What is run; :func:`request` makes it, and refuses what can't be.

    Attributes:
        command: of one rank.
        what: how it is simulated.
        folder: for the recording; None for a new one.
        recording: that the run is compared with; None for none.
    """

    command: list[str]
    what: Simulation
    folder: Optional[Path]
    recording: Optional[Recording]

    def run(
        self, find_need: bool, report: Callable[[str], None] = lambda line: None, **streams: Any
    ) -> tuple[SimulationResult, Optional[Versus]]:
        """Run the command, and compare it with the recording, if one was given and the run left one.

        Args:
            find_need: run the command a second time if memory runs out, to find how much it needs.
            report: called with a line before the second run.
            streams: ``stdin``, ``stdout`` and ``stderr`` of the command.

        Raises:
            CannotSimulateError: where no GPU can be simulated.
            CannotStartError: if the command can't be started.
        """
        folder = self.folder or new_folder(self.command, self.what)
        try:
            if find_need:
                result = simulate_and_find_need(self.command, self.what, folder, report, **streams)
            else:
                result = simulate(self.command, self.what, folder, **streams)
        except OSError as error:
            raise self._not_started(error) from None
        if self.recording is None or result.snapshot is None:
            return result, None
        return result, compare(self.recording, result.snapshot)

    def search(self, most: int, report: Callable[[int], None] = lambda number: None) -> Search:
        """The largest number, up to ``most``, that fits in the place of ``{}`` in the command.

        Raises:
            ValueError: if the command has no such place.
            CannotSimulateError: where no GPU can be simulated.
            CannotStartError: if the command can't be started.
        """
        try:
            return largest_that_fits(self.command, most, self.what, report)
        except OSError as error:
            raise self._not_started(error) from None

    def _not_started(self, error: OSError) -> CannotStartError:
        return CannotStartError(f'{self.command[0]!r} cannot be started: {error.strerror or error}')


def request(
    command: Sequence[str],
    what: Simulation,
    *,
    folder: Optional[Path] = None,
    versus: Optional[Path] = None,
    largest: Optional[int] = None,
) -> Request:
    """The run of a command that was asked for.

    Args:
        folder: for the recording. Default: a new one in ``simulated``.
        versus: a recording of the command on a real GPU, to compare with.
        largest: the largest number that a search may come to; None for no search.

    Raises:
        ValueError: for what can't be run, in one line.
    """
    words, what = as_one_rank(command, what)
    recording = None if versus is None else read_recording(versus)
    if what.rank >= (what.ranks or 1):
        raise ValueError(f'--rank={what.rank} must be below the number of ranks, {what.ranks or 1}')
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f'--folder={str(folder)!r} must be a new or an empty folder')
    if largest is not None and (folder is not None or versus is not None or what.trace is not None):
        raise ValueError('--largest records nothing, so that it takes no --folder, no --versus and no --trace')
    if what.trace is not None:
        check_trace_file(what.trace)
        if not what.steps:
            raise ValueError('--trace records a step after the last one of --steps, so that it takes no --steps 0')
    why_not = '' if largest is not None else why_no_folder(folder or FOLDER)
    if why_not:
        named = f'--folder={str(folder)!r}' if folder is not None else f'the folder {str(FOLDER)!r}, for the recording,'
        raise ValueError(f'{named} cannot be written: {why_not}; choose another with --folder')
    return Request(words, what, folder, recording)
