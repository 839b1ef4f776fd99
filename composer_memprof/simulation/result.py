"""What a simulated command came to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Optional

from composer_memprof.messages import count_of, human_bytes
from composer_memprof.simulated_gpu.values.reads import Read
from composer_memprof.simulation.guesses import endless_loop, guess_before_end
from composer_memprof.simulation.peaks import ProcessPeaks
from composer_memprof.simulation.step_time import StepTime
from composer_memprof.simulation.verdict import (
    DOES_NOT_FIT,
    EXIT_CODES,
    FOR_SOME_STEPS,
    NOT_SEEN,
    fits,
    verdict_of,
)

#: How sentences call what ran, if it is no function.
COMMAND = 'the command'
#: A training that memory suffices for so long is not said to grow: a loss that is kept, of 512 B, fills no GPU.
_ENOUGH_STEPS = 100_000
#: A shell's exit code of a command that was killed.
_KILLED = 128 + 9


@dataclasses.dataclass(frozen=True)
class SimulatedMachine:
    """What a command was run on, sizes in bytes.

    Attributes:
        gpu: the key of the device.
        total: the device's memory.
        available: of it, what torch's allocator can have.
        outside: allowances for what lies outside of the allocator, by what they are for.
        ranks: how many processes the one that runs stands among.
        rank: which of them it is.
        torch: the version whose allocator ran.
    """

    gpu: str
    total: int
    available: int
    outside: dict[str, int]
    ranks: int
    rank: int
    torch: str


@dataclasses.dataclass(frozen=True)
class Need:
    """What a command takes of a GPU with far more memory, in bytes; of the device that it takes most of.

    Attributes:
        steps: optimizer steps.
        exit_code: the command's in this second run; other than 0 if it needs more than it came to.
        timed_out: whether the time limit ended the second run.
    """

    allocated: int
    reserved: int
    steps: int
    exit_code: int
    timed_out: bool


@dataclasses.dataclass(frozen=True)
class SimulationResult(SimulatedMachine):
    """What a simulated command used, in bytes.

    Attributes:
        processes: those that used a GPU, the one that reserved most first.
        lost: how many used one and ended without leaving their figures, as by a signal.
        exit_code: the command's.
        timed_out: whether the time limit ended it.
        signal: the number of the signal that this process passed on to it; 0 if there was none.
        assumed: what the figures rest on, one sentence each.
        not_simulated: functions that were called and failed.
        whole: whether all of the command was asked for, and not a number of optimizer steps.
        with_evaluation: whether an evaluation and a checkpoint were asked for.
        steps_asked: optimizer steps after which the command was to be ended; 0 if all of it was asked for.
        need: of a command that did not fit, if it was asked for.
        follows_values: whether small values were computed; otherwise they were zeros.
        reads: of these, what the host read, the guessed ones first.
        unused: lines for which a part was given that masks keep, and where no mask was kept.
        subject: what ran, as sentences call it.
    """

    processes: list[ProcessPeaks]
    lost: int
    exit_code: int
    timed_out: bool
    signal: int
    assumed: list[str]
    not_simulated: list[str]
    whole: bool
    with_evaluation: bool
    steps_asked: int
    need: Optional[Need] = None
    follows_values: bool = False
    reads: list[Read] = dataclasses.field(default_factory=list)
    unused: list[str] = dataclasses.field(default_factory=list)
    subject: str = COMMAND

    @property
    def reserved(self) -> int:
        """The most that one process took of one device."""
        return max((device.reserved for process in self.processes for device in process.devices), default=0)

    @property
    def steps(self) -> int:
        return max((process.steps for process in self.processes), default=0)

    @property
    def time(self) -> Optional[StepTime]:
        """Of a step of the process that reserved most; None if it is not known."""
        return self.processes[0].time if self.processes else None

    @property
    def snapshot(self) -> Optional[Path]:
        """The recording of the process that reserved most among those that left one; None if none did."""
        return next((Path(process.snapshot) for process in self.processes if process.snapshot), None)

    @property
    def failed(self) -> bool:
        """Whether the command ended by itself with another exit code than 0."""
        return bool(self.exit_code) and not self.timed_out

    @property
    def ran_out(self) -> bool:
        """Whether an allocation failed and the command did not go on after it, but for a loop that no answer ended."""
        return not self._endless_loop and any(
            process.out_of_memory or (process.shortages and self.failed) for process in self.processes
        )

    @property
    def unseen(self) -> str:
        """Why the figures say nothing about the command, in a clause; ``''`` if they do, or memory ran out."""
        return '' if self.ran_out else self._endless_loop or _how_it_ended(self) or _what_is_missing(self)

    @property
    def _endless_loop(self) -> str:
        return endless_loop(self.reads) if self.failed or self.timed_out else ''

    @property
    def verdict(self) -> str:
        """One of those in :mod:`composer_memprof.simulation.verdict`."""
        if self.ran_out:
            return DOES_NOT_FIT
        if self.unseen:
            return NOT_SEEN
        return verdict_of(self.reserved, self.available) if self.steps_that_fit is None else FOR_SOME_STEPS

    @property
    def growth(self) -> int:
        """Bytes of a device that each step keeps, in the process that has room for fewest; 0 if memory does not grow."""
        return 0 if self._growing is None else self._growing[1]

    @property
    def steps_that_fit(self) -> Optional[int]:
        """About how many steps memory suffices for; None if it does not grow with each, or for very many."""
        return None if self._growing is None else self._growing[0]

    @property
    def _growing(self) -> Optional[tuple[int, int]]:
        """How many steps fit, and bytes with each."""
        found = []
        for process in self.processes:
            left = self.available - max((device.reserved for device in process.devices), default=0)
            if process.growth:
                found.append((process.steps + max(0, left) // process.growth, process.growth))
        return min((each for each in found if each[0] < _ENOUGH_STEPS), default=None)

    @property
    def reason(self) -> str:
        """Why the verdict is neither that it fits nor that it does not, in a clause; else ``''``."""
        if self.verdict == FOR_SOME_STEPS:
            return f'memory grows by {human_bytes(self.growth)} with each step'
        return self.unseen

    @property
    def fits(self) -> Optional[bool]:
        """None where nothing was seen, or memory grows with each step."""
        return fits(self.verdict)

    @property
    def code(self) -> int:
        """The exit code of ``simulate``: the command's own where it failed by itself, else the verdict's."""
        if self.signal or (self.failed and not self.ran_out):
            return self.exit_code
        return EXIT_CODES[self.verdict]

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            **dataclasses.asdict(self),
            'fits': self.fits,
            'verdict': self.verdict,
            'reason': self.reason,
            'growth': self.growth,
            'steps_that_fit': self.steps_that_fit,
            'time': self.time and dataclasses.asdict(self.time),
        }


def _how_it_ended(result: SimulationResult) -> str:
    """What is wrong with the command's end, in a clause; ``''`` if it ended well or when it was told to."""
    if result.exit_code == _KILLED and result.failed and not result.signal:
        return f'{result.subject} was killed (signal 9), most likely because host memory ran out'
    if result.lost and not result.processes:
        return f'{result.subject} ended with exit code {result.exit_code} before it left its figures'
    if result.failed:
        so_far = f'; {count_of(result.steps, "optimizer step")} fitted' if result.steps else ''
        return f'{result.subject} failed with exit code {result.exit_code}{so_far}'
    return ''


def _what_is_missing(result: SimulationResult) -> str:
    ended = not result.timed_out
    if not result.reserved:
        return f'{result.subject} {"used no" if ended else "was ended before it used"} GPU memory'
    if not result.steps and not (result.whole and ended):
        return f'{result.subject} {"ended" if ended else "was ended"} before an optimizer step'
    if result.timed_out and result.whole:
        return f'{result.subject} was ended before its own end'
    if result.steps < result.steps_asked:
        made = f'{result.steps} of {count_of(result.steps_asked, "optimizer step")}'
        if result.timed_out:
            return f'{result.subject} was ended after {made}'
        if guess := guess_before_end(result.reads):
            return f'{result.subject} ended after {made}, by itself or by what was guessed at {guess}'
    if result.with_evaluation:
        missing = [
            name
            for name, reached in (
                ('an evaluation', any(process.evaluated for process in result.processes)),
                ('a checkpoint', any(process.saved for process in result.processes)),
            )
            if not reached
        ]
        if missing:
            return f'{result.subject} {"ended" if ended else "was ended"} before {" and ".join(missing)}'
    return ''
