"""What a launcher starts, forked from it: a Python that need not import torch and Composer, because the launcher has.

:class:`Popen` takes the place of that of :mod:`subprocess` in a child of :mod:`tests.support.processes.warm_python`. If
the launcher is ``simulate``, that child is on a simulated GPU.
"""

from __future__ import annotations

import atexit
import inspect
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from composer_memprof.simulated_gpu.this_process import AT_START_VARIABLE
from composer_memprof.simulation.process import at_start
from tests.support.processes.warm_python_server import become

#: Runs a module as ``python -m`` does: a launcher, whose ranks are its forks.
LAUNCHER = """
import runpy, subprocess, sys
from tests.support.processes.forked_python import Popen
subprocess.Popen = Popen
sys.argv[:] = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
"""
_REAL = subprocess.Popen
#: Before the launcher sets its own.
_HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)}


class Popen(subprocess.Popen):
    """As :class:`subprocess.Popen`, whose child is forked if the command is this Python with a script or module.

    A command that is installed beside this Python is a script of it.
    """

    def _execute_child(self, *given: Any) -> None:  # type: ignore[override]
        named = inspect.signature(super()._execute_child).bind(*given).arguments  # type: ignore[misc]
        words = [named['args']] if isinstance(named['args'], (str, bytes, os.PathLike)) else named['args']
        executable, *arguments = (os.fspath(word) for word in words if word != '-u')
        script = shutil.which(executable, path=(named['env'] or os.environ).get('PATH'))
        if script and Path(script).read_bytes().startswith(f'#!{sys.executable}\n'.encode()):
            executable, arguments = sys.executable, [script, *arguments]
        flags = [word for word in arguments[:1] if word.startswith('-') and word != '-m']
        if executable != sys.executable or not arguments or flags:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if not self.pid:
            _run(arguments, named)
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(named[end] for end in ('p2cread', 'p2cwrite', 'c2pread', 'c2pwrite', 'errread', 'errwrite'))
        )


def _run(arguments: list[str], named: dict[str, Any]) -> None:
    """Run the script in the child, and end as Python does. Never returns."""
    theirs = (named['p2cread'], named['c2pwrite'], named['errwrite'])
    streams = [os.dup(number if each == -1 else each) for number, each in enumerate(theirs)]
    code = 1
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # folders that the command removes, and not its child
    try:
        program = become(
            {
                'arguments': arguments,
                'cwd': os.path.abspath(named['cwd'] or '.'),
                'environment': dict(os.environ if named['env'] is None else named['env']),
                'new_session': named['start_new_session'],
                'umask': named['umask'],
                'whole_exit': False,
                'hang_up_ignored': False,
                'pass_fds': [],
            },
            streams,
        )
        subprocess.Popen = _REAL  # type: ignore[misc]
        for number, handler in _HANDLERS.items():
            signal.signal(number, handler)
        if AT_START_VARIABLE in os.environ:
            at_start.prepare()
        code = _exit_code_of(program)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_code_of(program: Any) -> int:
    try:
        exec(program, vars(sys.modules['__main__']))
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0
