"""How a plan ends that is interrupted or killed, and what it says of a trial that is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import child_environment, simulated_gpu, wait_for
from tests.support.processes.simulated_runs import run_on_a_server

pytestmark = pytest.mark.slow

PLAN = [sys.executable, '-m', 'composer_memprof', 'plan', 'quickstart', '--gpu', 't4', 'model.n_layers=48']


def started() -> subprocess.Popen[str]:
    simulated_gpu()  # skips where there is none
    return subprocess.Popen(
        PLAN, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def trials_of(plan: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that are killed first, which each trial asks for. Composer's import starts others, such as uname."""
    if plan.poll() is not None:
        return []
    return [child for child in psutil.Process(plan.pid).children(recursive=True) if is_killed_first(child)]


def is_killed_first(process: psutil.Process) -> bool:
    try:
        return Path(f'/proc/{process.pid}/oom_score_adj').read_text() == '1000\n'
    except OSError:
        return False  # it has ended


@pytest.mark.parametrize('seconds', [0.4, 0.8, 1.6, 3.2, None])
def test_ctrl_c_ends_a_plan_in_one_line_at_any_moment(seconds: float | None) -> None:
    plan = started()
    if seconds is None:
        wait_for(lambda: bool(trials_of(plan)), 60)
    else:
        time.sleep(seconds)
    os.killpg(plan.pid, signal.SIGINT)  # as a terminal does: the trial too
    output, errors = plan.communicate(timeout=30)
    assert (plan.returncode, output, errors) == (130, '', 'composer-memprof: interrupted\n')


def test_a_killed_plan_leaves_no_trial_behind() -> None:
    plan = started()
    trials: list[psutil.Process] = []
    wait_for(lambda: bool(trials.extend(trials_of(plan)) or trials), 60)
    plan.kill()
    plan.communicate(timeout=30)
    _, alive = psutil.wait_procs(trials, 10)
    assert not alive


INTERRUPTED_AT_ITS_FORK = """
import os, signal
from composer_memprof.plans import forking
from composer_memprof.plans.trial import Outcome, Trial
fork = os.fork
os.fork = lambda: fork() or os.kill(os.getpid(), signal.SIGINT) or 0
forking.run_trial = lambda config, trial: Outcome(error='the trial ran')
print(forking.outcome_of('quickstart', Trial()).error)
"""


def test_ctrl_c_at_the_fork_of_a_trial_is_answered_by_the_plan_alone() -> None:
    done = run_on_a_server(INTERRUPTED_AT_ITS_FORK, environment=simulated_gpu('t4'))
    assert done.stdout == 'the trial ran\n', done.stderr


KILLED = """
import os
from composer_memprof.plans import forking
from composer_memprof.plans.trial import Trial
forking.run_trial = lambda config, trial: os.kill(os.getpid(), 9)
print(forking.outcome_of('quickstart', Trial()).error)
"""


def test_a_trial_that_is_killed_is_said_to_be() -> None:
    done = run_on_a_server(KILLED, environment=simulated_gpu('t4'))
    assert done.stdout == 'the trial was killed (signal 9), most likely because host memory ran out\n', done.stderr


INTERRUPTED_WHILE_OPTIONS_ARE_READ = """
import os, signal, sys
from typer.core import TyperCommand
from composer_memprof.__main__ import main
read = TyperCommand.parse_args
TyperCommand.parse_args = lambda *given: os.kill(os.getpid(), signal.SIGINT) or read(*given)
sys.argv[:] = ['composer-memprof', *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize('command', ['plan quickstart', 'check', 'simulate -- python x.py', 'ls'])
def test_ctrl_c_while_options_are_read_ends_a_command_in_one_line(command: str) -> None:
    code = [sys.executable, '-c', INTERRUPTED_WHILE_OPTIONS_ARE_READ, *command.split()]
    done = subprocess.run(code, env=child_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, '', 'composer-memprof: interrupted\n')


INTERRUPTED_IN_A_COMMAND = """
import os, signal, sys
from composer_memprof.__main__ import main
from composer_memprof import guide
guide.pages = lambda: os.kill(os.getpid(), signal.SIGINT)
sys.argv[:] = ['composer-memprof', 'guide', 'index']
main()
"""


def test_ctrl_c_in_a_command_that_cleans_up_ends_it_in_one_line_too() -> None:
    code = [sys.executable, '-c', INTERRUPTED_IN_A_COMMAND]
    done = subprocess.run(code, env=child_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, '', 'composer-memprof: interrupted\n')


HANDLER_AFTER_IMPORTS = """
import signal
from composer_memprof.interrupts import end_at_once, handler_kept
signal.signal(signal.SIGINT, end_at_once)
with handler_kept():
    import composer.core.engine
print(signal.getsignal(signal.SIGINT) is end_at_once, signal.getsignal(signal.SIGTERM).__module__)
"""


def test_composer_does_not_replace_the_handler_with_its_silent_one() -> None:
    done = subprocess.run(
        [sys.executable, '-c', HANDLER_AFTER_IMPORTS],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == 'True composer.core.engine\n', done.stderr


INTERRUPTED_WHERE_EXCEPTIONS_ARE_SWALLOWED = """
import contextlib, os, signal
from composer_memprof.interrupts import end_at_once
from composer_memprof.plans import __main__, planning

def load(*given):
    with contextlib.suppress(BaseException):
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit('it went on')

planning.load = load
signal.signal(signal.SIGINT, end_at_once)
asked = dict(config='quickstart', overrides=[], ranks=1, ranks_per_node=None, allocator='', vary=[], changes=False)
asked.update(fastest=False, advised=None, with_evaluation=False)
__main__.main({**asked, 'as_json': True, 'device': {'gpu': 't4', 'total': 1 << 34, 'outside': {}}})
"""


def test_ctrl_c_between_the_trials_of_a_plan_cannot_be_swallowed() -> None:
    done = run_on_a_server(INTERRUPTED_WHERE_EXCEPTIONS_ARE_SWALLOWED, environment=simulated_gpu('t4'))
    assert (done.returncode, done.stdout, done.stderr) == (130, '', 'composer-memprof: interrupted\n')
