"""Runs a command on a simulated GPU and collects what its processes left."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from composer_memprof.artifacts.naming.numbering import counted
from composer_memprof.artifacts.writing.child.work import be_killed_first
from composer_memprof.artifacts.writing.temporary_folders import temporary_folder
from composer_memprof.simulated_gpu import ranks as simulated_ranks
from composer_memprof.simulated_gpu.devices import Device
from composer_memprof.simulated_gpu.environment import environment_with
from composer_memprof.simulated_gpu.launchers.unwrapping import unwrapped
from composer_memprof.simulated_gpu.outside import Outside, outside_of
from composer_memprof.simulated_gpu.this_process import AT_START_VARIABLE, NOTES_VARIABLE, assumed_in, notes_in
from composer_memprof.simulated_gpu.values.reads import kept_in, parsed
from composer_memprof.simulation.peaks import UNFINISHED, Asked, ProcessPeaks, read_peaks
from composer_memprof.simulation.result import COMMAND, SimulationResult
from composer_memprof.simulation.trace.files import put_trace
from composer_memprof.simulation.verdict import torch_version

#: After the time limit, seconds until the command is killed. Its figures are written by then, and most snapshots.
_GRACE_S = 8.0
#: Where commands' own folders are made.
FOLDER = Path('simulated')
#: How a note on a function that failed begins.
_MISSING = 'not simulated: '


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What is simulated.

    Attributes:
        device: the kind of GPU.
        ranks: how many processes the command stands among; None for a command that is no distributed one.
        rank: which of them it is.
        ranks_per_node: Default: 8, or ``ranks`` if they are fewer.
        devices: of the machine. Default: one for each rank of a node.
        variables: what the launcher adds to the environment.
        keeps_recording: record also where the script records the memory's history itself, in its place.
        steps: optimizer steps until the command is ended; 0 lets it go on.
        with_evaluation: also wait for one evaluation and one checkpoint.
        time_limit: seconds until it is ended; 0 for none.
        kept: which part of its elements a mask is taken to keep.
        values: compute small values that the script reads back.
        kept_at: with ``values``, the part that the masks of single lines keep, by ``file:line``.
        name: of the function that the command calls; ``''`` if it is a command of the user's.
        trace: where to write the trace of the step that is timed.
    """

    device: Device
    ranks: Optional[int] = None
    rank: int = 0
    ranks_per_node: Optional[int] = None
    steps: int = 3
    with_evaluation: bool = False
    time_limit: float = 0
    kept: float = 1.0
    devices: Optional[int] = None
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    keeps_recording: bool = False
    values: bool = True
    kept_at: Mapping[str, float] = dataclasses.field(default_factory=dict)
    name: str = ''
    trace: Optional[Path] = None

    @property
    def subject(self) -> str:
        """What runs, as sentences call it."""
        return f'the function {self.name}' if self.name else COMMAND

    @property
    def outside(self) -> Outside:
        """What lies outside of torch's allocator on each device."""
        return outside_of(self.device, self.ranks or 1)

    @property
    def available(self) -> int:
        """What torch's allocator can have of each device, in bytes."""
        return self.device.total_memory - self.outside.bytes

    def machine(self) -> dict[str, Any]:
        """The values of :class:`SimulatedMachine`."""
        return {
            'gpu': self.device.key,
            'total': self.device.total_memory,
            'available': self.available,
            'outside': dataclasses.asdict(self.outside),
            'ranks': self.ranks or 1,
            'rank': self.rank,
            'torch': torch_version(),
        }


def simulate(command: Sequence[str], what: Simulation, folder: Optional[Path], **streams: Any) -> SimulationResult:
    """Run a command on a simulated GPU, in an environment of its own; its output goes where this process's goes.

    Args:
        command: the program and its arguments.
        folder: for the snapshot of each process, and for nothing else; empty. It is removed if it stays so. With None
            nothing is recorded.
        streams: ``stdout`` and ``stderr``, as :class:`subprocess.Popen` takes them.

    Raises:
        CannotSimulateError: where no GPU can be simulated.
        OSError: if the command can't be started.
    """
    with temporary_folder('simulate') as temporary:
        notes = temporary / 'notes'
        environment = {**_environment(what), NOTES_VARIABLE: str(notes)}
        deadline = time.time() + what.time_limit if what.time_limit else 0
        absolute = None if folder is None else folder.absolute()
        environment |= Asked(
            temporary,
            absolute,
            what.steps,
            what.with_evaluation,
            deadline,
            what.keeps_recording,
            what.trace is not None,
        ).as_environment()
        try:
            code, timed_out, passed_on = _run(command, environment, what.time_limit, streams)
        finally:
            if folder is not None:
                _clean(folder)
        processes, lost = read_peaks(temporary)
        processes = [_with_trace(each, what.trace if each is processes[0] else None) for each in processes]
        lines = notes_in(notes)
        kept = kept_in(lines)
    return SimulationResult(
        **what.machine(),
        processes=processes,
        lost=lost,
        exit_code=code,
        timed_out=timed_out,
        signal=passed_on,
        assumed=assumed_in(lines),
        not_simulated=[line.removeprefix(_MISSING) for line in lines if line.startswith(_MISSING)],
        whole=not what.steps,
        with_evaluation=what.with_evaluation,
        steps_asked=what.steps,
        follows_values=what.values,
        reads=parsed(lines),
        unused=[place for place in what.kept_at if place not in kept],
        subject=what.subject,
    )


def _with_trace(peaks: ProcessPeaks, path: Optional[Path]) -> ProcessPeaks:
    """With the trace of the process where the user wants it, or without any."""
    if peaks.trace is None or path is None:
        return dataclasses.replace(peaks, trace=None)
    put_trace(Path(peaks.trace), path)
    return dataclasses.replace(peaks, trace=str(path))


def _clean(folder: Path) -> None:
    """Remove files that a killed process has not finished, and the folder if it is empty."""
    for path in folder.glob(f'*{UNFINISHED}'):
        path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
        if folder.parent == FOLDER:
            folder.parent.rmdir()


def _environment(what: Simulation) -> dict[str, str]:
    launched = {}
    if what.ranks is not None:
        launched = simulated_ranks.environment(what.ranks, what.rank, what.ranks_per_node)
    devices = what.devices or int(launched.get('LOCAL_WORLD_SIZE', '1'))
    quiet = {'WANDB_MODE': os.environ.get('WANDB_MODE', 'offline')}  # no zeros among real results
    environment = environment_with(
        what.device,
        devices=devices,
        outside=what.outside.bytes,
        kept=what.kept,
        values=what.values,
        kept_at=what.kept_at,
    )
    return {
        **environment,
        **quiet,
        **what.variables,
        **launched,
        AT_START_VARIABLE: 'composer_memprof.simulation.process.at_start:prepare',
    }


def _run(
    command: Sequence[str], environment: dict[str, str], time_limit: float, streams: dict[str, Any]
) -> tuple[int, bool, int]:
    """The exit code as a shell would have it, whether time ran out, and the signal that was passed on."""
    # a group of its own, so that nothing that it started stays behind
    process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
    be_killed_first(process.pid)
    timed_out = False
    with _killed_with_this_process(process), _signals_passed_on(process) as signals:
        try:
            code = process.wait(time_limit or None)
        except subprocess.TimeoutExpired:
            timed_out = True
            _send(process, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
    _send(process, signal.SIGKILL)
    code = process.wait()
    return (128 - code if code < 0 else code), timed_out, signals[0] if signals else 0


@contextlib.contextmanager
def _killed_with_this_process(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Within the block: if this process is killed, so is the command with all that it started.

    A shell waits for a line. Where this process ends without writing one, the shell reads the end of the file.
    ``PR_SET_PDEATHSIG`` would reach the command alone, and not its children.
    """
    watch = ['sh', '-c', 'read line || kill -s KILL -- "-$0"', str(process.pid)]
    with subprocess.Popen(
        watch,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as watcher:
        try:
            yield
        finally:
            watcher.communicate(b'\n')


@contextlib.contextmanager
def _signals_passed_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """The command gets the first signal; the second one kills it. Yields those that came."""
    received: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        received.append(number)
        _send(process, number if len(received) == 1 else signal.SIGKILL)

    here = threading.current_thread() is threading.main_thread()  # only there can handlers be set
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) if here else ()
    before = {number: signal.signal(number, pass_on) for number in signals}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def as_one_rank(command: Sequence[str], what: Simulation) -> tuple[list[str], Simulation]:
    """The command of one rank, where the command is a launcher's, and the ranks that it launches unless they are given.

    Raises:
        ValueError: if it is a launcher that is not known, or the numbers of ranks do not go together.
    """
    launch = unwrapped(
        python_of(command),
        rank=what.rank,
        ranks_per_node=what.ranks_per_node or what.devices,
        machine=lambda devices: environment_with(what.device, devices=devices),
    )
    per_node = what.ranks_per_node or launch.ranks_per_node
    ranks = what.ranks or launch.ranks
    if ranks is not None:
        # refuses what does not go together
        on_node = int(simulated_ranks.environment(ranks, what.rank, per_node)['LOCAL_WORLD_SIZE'])
        if what.devices is not None and what.devices < on_node:
            raise ValueError(f'--devices={what.devices} must be at least the ranks of a node, {on_node}')
    launched = dataclasses.replace(
        what, ranks=ranks, ranks_per_node=per_node, variables={**what.variables, **launch.variables}
    )
    return launch.command, launched


def hidden_gpu() -> bool:
    """True if this machine has a GPU, which a simulated process does not see."""
    return Path('/dev/nvidiactl').exists()


def new_folder(command: Sequence[str], what: Simulation) -> Path:
    """Make a folder for the files of a command, named after its script or module, or after what runs, below ``simulated``."""
    words = [*command, '']
    after_m = [words[number + 1] for number, word in enumerate(words[:-1]) if word == '-m']
    scripts = [Path(word).stem for word in command if word.endswith('.py') and os.path.isfile(word)]
    named = what.name or (after_m or scripts or ['command'])[0]
    stem = f'{re.sub(r"[^A-Za-z0-9_.-]", "_", named)[:60]}.{what.device.key}'
    for number in itertools.count(1):
        folder = FOLDER / (stem + counted(number))
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError('there is always a next number')


def python_of(command: Sequence[str]) -> list[str]:
    """The command with this interpreter in place of a bare ``python``, which may be another environment's.

    >>> import sys
    >>> python_of(['python', 'train.py']) == [sys.executable, 'train.py']
    True
    """
    return [sys.executable, *command[1:]] if command and command[0] in ('python', 'python3') else list(command)
