"""Runs each trial in a process of its own: forked, so that the imports, which take most of the time, are made once."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from composer_memprof.analysis.typed_json import from_plain
from composer_memprof.artifacts.writing.child.work import be_killed_first
from composer_memprof.artifacts.writing.temporary_folders import temporary_folder
from composer_memprof.interrupts import ctrl_c_raises
from composer_memprof.messages import log_error
from composer_memprof.plans.running import run_trial
from composer_memprof.plans.trial import Outcome, Trial
from composer_memprof.signals import STOPPING
from composer_memprof.simulated_gpu.this_process import NOTES_VARIABLE, assumed_in, notes_in

#: A trial that takes longer is ended.
_TIME_LIMIT_S = 1800
#: Of <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1


def outcome_of(config: str, trial: Trial) -> Outcome:
    """Run a trial in a forked process. What it prints is not shown."""
    with temporary_folder('plan') as folder:
        answer, log = folder / 'answer.json', folder / 'log'
        status = _wait_for(lambda: _run_and_leave(config, trial, answer, log))
        if not answer.exists():
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGALRM:
                return Outcome(error=f'the trial took longer than {_TIME_LIMIT_S} seconds', timed_out=True)
            if code == -signal.SIGKILL:
                return Outcome(error='the trial was killed (signal 9), most likely because host memory ran out')
            lines = log.read_text(errors='replace').strip().splitlines()
            return Outcome(error=f'the trial ended with code {code}: {lines[-1][:200] if lines else "no message"}')
        return from_plain(Outcome, json.loads(answer.read_text()))


def _wait_for(run: Callable[[], None]) -> int:
    """The status with which a forked process ends that calls ``run``. If this one is told to stop, it ends that first."""
    child = _fork(run)  # signals are blocked from here on
    try:
        with ctrl_c_raises():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            return os.waitpid(child, 0)[1]
    except BaseException:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it may have ended just before
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        raise


def _fork(run: Callable[[], None]) -> int:
    """Fork a process that calls ``run``, which never returns. The caller unblocks the signals that stop a job.

    Until then no handler of the caller runs, neither in the child, where it would answer a second time, nor in the
    caller before the caller can end the child.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)  # the parent ends it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        _end_with(parent)
        run()
    return child


def _end_with(parent: int) -> None:
    """In the child: it is killed if its parent is, and before any other process if host memory runs out."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    be_killed_first()


def _run_and_leave(config: str, trial: Trial, answer: Path, log: Path) -> None:
    """In the child: never returns."""
    code = 1
    try:
        signal.alarm(_TIME_LIMIT_S)
        output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.path.insert(0, os.getcwd())
        notes = answer.with_name('notes')
        os.environ[NOTES_VARIABLE] = str(notes)
        outcome = run_trial(os.path.abspath(config) if os.path.exists(config) else config, trial)
        outcome = dataclasses.replace(outcome, assumed=assumed_in(notes_in(notes)))
        answer.write_text(json.dumps(dataclasses.asdict(outcome)))
        code = 0
    except BaseException as error:
        log_error('a trial failed', error)
        traceback.print_exc()  # its last line is what the parent tells
        sys.stderr.flush()
    finally:
        os._exit(code)  # the parent's exit handlers are not the child's
