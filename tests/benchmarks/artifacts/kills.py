"""Runs with all callbacks and DataLoader workers, ended at random moments: what they leave behind.

``make bench ARGS=kills`` ends ``KILLS`` runs (200) by SIGKILL, and a tenth as many in each other way. A third of those that
were killed are then started again in the same folder, and end by themselves. It takes about a quarter of an hour. Runs are forked from one process that has imported everything, ``KILLS_AT_ONCE`` (3) at a time.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import psutil
import torch
from composer.core import Callback

from composer_memprof.artifacts.reading.attempts import read_attempts
from composer_memprof.artifacts.reading.manifest import find_manifests
from composer_memprof.artifacts.uploading.push.push import push
from tests.benchmarks.callbacks.every_callback import every_callback
from tests.conftest import Noise, child_environment, make_trainer
from tests.support.processes.leavings import what_is_wrong

_KILLS = int(os.environ.get('KILLS', '200'))
_AT_ONCE = int(os.environ.get('KILLS_AT_ONCE', '3'))
_BATCHES, _PERIOD = 60, 20
#: In which ways a run ends.
SIGNALS = {'kill -9': signal.SIGKILL, 'SIGTERM': signal.SIGTERM, 'SIGINT': signal.SIGINT, 'SIGHUP': signal.SIGHUP}
WAYS = (*SIGNALS, 'sys.exit', 'worker')
#: How long what a run has started may go on after its end: writers have their windows to finish.
_LINGER_S = 60.0


class _Exits(Callback):
    def __init__(self, batch: int) -> None:
        self._batch = batch

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == self._batch:
            sys.exit(7)


class _Breaks(Noise):
    """Its sample ``broken`` raises, in the worker that loads it."""

    def __init__(self, samples: int, broken: int) -> None:
        super().__init__(samples)
        self._broken = broken

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == self._broken:
            raise RuntimeError('a broken sample')
        return super().__getitem__(index)


@dataclass
class Run:
    """A run that was ended in one ``way``, ``after`` seconds (or at that share of its batches)."""

    way: str
    after: float
    folder: Path
    pid: int = 0
    #: The process that sends the signal.
    killer: int = 0
    code: Optional[int] = None
    #: It is started again in the same folder once it was killed; or it is that second run.
    again: bool = False
    is_second: bool = False
    #: How the attempts in each manifest had ended before the second run; None for one that wrote no last line.
    before: dict[Path, list[Optional[str]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def train_until_ended(way: str, share: float) -> None:
    """In the child: train with all callbacks and two workers."""
    torch.manual_seed(7)
    batch = max(1, int(share * _BATCHES))
    data = _Breaks(_BATCHES * 8, batch * 8 if way == 'worker' else -1)
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
    callbacks = [*every_callback(_PERIOD), _Exits(batch if way == 'sys.exit' else -1)]
    trainer = make_trainer(*callbacks, train_dataloader=loader)
    trainer.fit()
    trainer.close()


def start(run: Run) -> bool:
    """Fork the run. True in the child, where it has to be trained."""
    run.folder.mkdir(parents=True, exist_ok=run.is_second)
    sys.stdout.flush()
    run.pid = os.fork()
    if run.pid:
        return False
    os.setsid()
    os.chdir(run.folder)
    output = os.open('output.txt', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    return True


def kill_later(run: Run) -> None:
    """Send the run its signal from a process of its own: this one waits for what other runs have started."""
    run.killer = os.fork()
    if not run.killer:
        descriptor = os.pidfd_open(run.pid)
        time.sleep(run.after)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(descriptor, SIGNALS[run.way])
        os._exit(0)


def descendants(session: int) -> list[psutil.Process]:
    """The processes that a run has started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end(run: Run) -> None:
    """Wait for the run's end, and for that of everything it started, and look at what is left."""
    run.code = os.waitstatus_to_exitcode(os.waitpid(run.pid, 0)[1])
    if run.killer:
        os.kill(run.killer, signal.SIGKILL)
        os.waitpid(run.killer, 0)
    deadline = time.monotonic() + _LINGER_S
    while left := descendants(run.pid):
        if time.monotonic() > deadline:
            run.wrong += [f'orphan: {" ".join(process.cmdline()[:3])}' for process in left]
            for process in left:
                process.kill()
            break
        time.sleep(0.1)
    flushed = run.way != 'kill -9'
    run.wrong += what_is_wrong(run.folder, flushed=flushed)
    if run.is_second:
        run.wrong += wrong_attempts(run)
    if run.again:
        return  # the second run has to close what is open
    push(run.folder)
    run.wrong += [f'not cleared: {path.name}' for path in run.folder.rglob('.*') if path.is_file()]
    if run.code in [-bad for bad in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)]:
        run.wrong.append(f'ended by {signal.Signals(-run.code).name}')


def ends_of_attempts(folder: Path) -> dict[Path, list[Optional[str]]]:
    return {path: [attempt.end for attempt in read_attempts(path)] for path in find_manifests(folder)}


def wrong_attempts(run: Run) -> list[str]:
    """A line for each manifest in which the first attempt has not ended as it did, or the second has not finished.

    A run may have finished and be killed while its process ends.
    """
    return [
        f'attempts: {path.name} lists {ends}'
        for path, ends in ends_of_attempts(run.folder).items()
        if ends != [*(end or 'killed' for end in run.before.get(path, [])), 'finished']
    ]


def runs_of(way: str, number: int, seconds: float, folder: Path, chance: random.Random) -> Iterator[Run]:
    for each in range(number):
        share = chance.random()
        after = share * seconds if way in SIGNALS else share
        again = way == 'kill -9' and chance.random() < 1 / 3
        yield Run(way, after, folder / f'{way.split()[0]}{each}', again=again)


def report(way: str, runs: list[Run]) -> int:
    """Returns how many runs left something wrong."""
    codes = collections.Counter(run.code for run in runs)
    said = ', '.join(f'{count} x {code}' for code, count in codes.most_common())
    broken = [run for run in runs if run.wrong]
    print(f'  {way}: {len(runs)} runs, exit {said}; something is wrong after {len(broken)}', flush=True)
    kinds = collections.Counter(each.split(':')[0] for run in broken for each in run.wrong)
    for kind, count in kinds.most_common():
        example = next(each for run in broken for each in run.wrong if each.startswith(kind))
        print(f'    {count} x {example}', flush=True)
    for run in broken:
        print(f'      kept: {run.folder}', flush=True)
    return len(broken)


def end_runs(ways: list[str]) -> int:
    """End runs in these ways; returns how many left something wrong. In a forked run it returns 0 at the run's end."""
    chance = random.Random(int(os.environ.get('KILLS_SEED', '0')))
    folder = Path(tempfile.mkdtemp(prefix='kills-'))
    whole = Run('none', 1.0, folder / 'whole')
    began = time.monotonic()
    if start(whole):
        train_until_ended('none', 1.0)
        return 0
    end(whole)
    seconds = time.monotonic() - began
    print(f'  a whole run takes {seconds:.1f} s; wrong after it: {whole.wrong}', flush=True)
    broken = len(whole.wrong)
    for way in ways:
        number = _KILLS if way == 'kill -9' else max(1, _KILLS // 10)
        waiting = list(runs_of(way, number, seconds, folder, chance))
        running: list[Run] = []
        done: list[Run] = []
        again = 0
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                run = waiting.pop()
                if start(run):
                    train_until_ended(run.way, run.after)
                    return 0
                if way in SIGNALS:
                    kill_later(run)
                running.append(run)
            for run in list(running):
                if os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    continue
                running.remove(run)
                end(run)
                if run.again and not run.wrong:
                    second = Run('none', 1.0, run.folder, is_second=True, before=ends_of_attempts(run.folder))
                    if start(second):
                        train_until_ended('none', 1.0)
                        return 0
                    running.append(second)
                    again += 1
                    continue
                done.append(run)
                if not run.wrong:
                    shutil.rmtree(run.folder)
            time.sleep(0.01)
        broken += report(way, done)
        if again:
            print(f'    {again} of them were started again, and ended by themselves', flush=True)
    return broken


def kills(rounds: int) -> None:
    del rounds  # KILLS says how many
    # Runs are forked from a process without threads.
    subprocess.run([sys.executable, '-m', 'tests.benchmarks.artifacts.kills'], env=child_environment(), check=True)


if __name__ == '__main__':
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    sys.exit(min(1, end_runs(sys.argv[1:] or list(WAYS))))
