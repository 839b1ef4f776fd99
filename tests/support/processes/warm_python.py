"""Python processes that need not import torch and Composer first: children forked from one that has imported them.

:class:`Popen` and :func:`run` take the place of those of :mod:`subprocess` for commands such as ``[sys.executable,
'-c', code]``. The child is a process of its own, with its own pid, environment, folder, session and descriptors. It
runs the code as ``__main__`` at the top of the interpreter, and ends as any Python does. It differs from a fresh
process in two things. What :mod:`tests.support.processes.warm_python_server` imports is imported, with what Composer
does when it is imported: handlers of SIGTERM and SIGINT, and one at exit. And at its end, modules that the server has
imported and C++ libraries are not taken apart, which takes most of a short child's time; with ``whole_exit=True`` they
are.

A test of what an import does, of flags of the interpreter, or of the installed script needs a fresh process. One is
started too if variables of the environment, such as OMP_NUM_THREADS, are not those of the server: libraries read some
when they are imported. With ``own_server=True`` such a process gets a server with its variables instead. Without
OMP_NUM_THREADS in the environment of the tests, children have one thread each.
"""

from __future__ import annotations

import atexit
import hashlib
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Optional

_ROOT = Path(__file__).parents[3]
#: Variables whose names begin so are read when they are needed, not at an import. All others must be the server's.
_READ_LATER = (
    *('AWS_', 'AZURE_', 'DATABRICKS_', 'GOOGLE_', 'MLFLOW_', 'S3_ENDPOINT_URL', 'COMPOSER_MEMPROF_', 'PYTEST_'),
    *('RANK', 'WORLD_SIZE', 'LOCAL_', 'GROUP_', 'NODE_RANK', 'MASTER_', 'FSDP_VERSION', 'PATH', 'HOME', 'TMPDIR'),
    *('COLUMNS', 'LINES', 'COMP_', '_COMPOSER_MEMPROF_COMPLETE'),
)
#: These are read when CUDA is initialized, which no import does. At the import, the allocator's backend is chosen, and
#: whether values are followed; of ``SIMULATED_GPU`` no more than that must be the server's.
_READ_WITH_CUDA = ('SIMULATED_GPU', 'SIMULATED_GPU_NOTES', 'PYTORCH_CUDA_ALLOC_CONF')
#: Beside the one with the variables of the tests. Each takes some 400 MiB, in all processes of the tests together.
_MOST_OTHERS = 4
#: A name for this run of the tests, which may be in several processes.
RUN = os.environ.get('PYTEST_XDIST_TESTRUNUID') or f'{os.getpid()}-{os.urandom(8).hex()}'
_PATIENCE_S = 300


class _Server:
    """A process that forks a child for each request, of this process and of all others of the same run of the tests."""

    def __init__(self, key: frozenset[tuple[str, str]], environment: dict[str, str]) -> None:
        # no file has this name: it is gone with the last process that has the socket
        name = '\0composer-memprof-tests-' + hashlib.sha256(repr((RUN, sorted(key))).encode()).hexdigest()
        self._process: Optional[subprocess.Popen] = None
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            self.requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                self.requests.connect(name)
                ready = self.requests.recv(16) == b'ready'
            except ConnectionError:
                ready = False
            if ready:
                return
            self.requests.close()
            if time.monotonic() > deadline or (self._process is not None and self._process.poll() is not None):
                raise RuntimeError('the server of warm Python processes did not start')
            self._start(name, environment)

    def _start(self, name: str, environment: dict[str, str]) -> None:
        """Start the server, unless another process is about to."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as entrance:
            try:
                entrance.bind(name)
            except OSError:
                time.sleep(0.01)
                return
            entrance.listen(64)
            number = entrance.fileno()
            code = f'from tests.support.processes.warm_python_server import serve; exec(serve({number}), globals())'
            self._process = subprocess.Popen(
                [sys.executable, '-c', code],
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
                start_new_session=True,  # Ctrl-C in the terminal is for the tests, which then end
            )

    def start(self, asked: dict[str, Any], descriptors: list[int]) -> tuple[int, socket.socket]:
        """The number of a new child, and the socket that says how it ended."""
        answers, theirs = socket.socketpair()
        with theirs:
            message = json.dumps(asked).encode()
            socket.send_fds(self.requests, [message], [theirs.fileno(), *descriptors])
        answer = b''
        while not answer.endswith(b'\n'):
            byte = answers.recv(1)
            if not byte:
                raise RuntimeError('the server of warm Python processes has started no child')
            answer += byte
        return int(answer), answers

    def end(self) -> None:
        """Leave the server, which ends with the last that leaves it."""
        self.requests.close()


_servers: dict[frozenset[tuple[str, str]], _Server] = {}


@atexit.register
def _end_all() -> None:
    for server in _servers.values():
        server.end()


def _key(environment: dict[str, str]) -> frozenset[tuple[str, str]]:
    """The variables that must be those of a server. Of the number of simulated ranks, only that there is one is read."""
    kept = {'SIMULATED_RANKS': '', 'SIMULATED_GPU': 'values='}
    return frozenset(
        (name, kept.get(name, value))
        for name, value in environment.items()
        if not name.startswith(_READ_LATER)
        and (name not in _READ_WITH_CUDA or 'backend:' in value or 'values=' in value)
    )


def _server_for(environment: dict[str, str], own_server: bool) -> Optional[_Server]:
    """None if a fresh process is needed."""
    key = _key(environment)
    if key not in _servers:
        usual = {**os.environ, 'PYTHONPATH': str(_ROOT)}
        if not own_server and key != _key(usual):
            return None
        if len(_servers) > _MOST_OTHERS:
            _servers.pop(next(iter(_servers))).end()
        _servers[key] = _Server(key, {**environment, 'OMP_NUM_THREADS': environment.get('OMP_NUM_THREADS', '1')})
    _servers[key] = _servers.pop(key)  # the one that was used last is the last to go
    return _servers[key]


class Popen(subprocess.Popen):
    """As :class:`subprocess.Popen`, of a Python that has imported torch and Composer.

    Args:
        command (list): ``sys.executable`` with ``-c CODE``, ``-m MODULE`` or a script, and the arguments.
        own_server (bool): may start a server with the variables of this environment.
        whole_exit (bool): takes modules and libraries apart at its end, for a test of what happens there.
        settings: as those of :class:`subprocess.Popen`.
    """

    def __init__(
        self, command: list[Any], *, own_server: bool = False, whole_exit: bool = False, **settings: Any
    ) -> None:
        self._own_server = own_server
        self._whole_exit = whole_exit
        self._answers: Optional[socket.socket] = None
        super().__init__(command, **settings)

    def _execute_child(self, *given: Any) -> None:  # type: ignore[override]
        named = inspect.signature(super()._execute_child).bind(*given).arguments  # type: ignore[misc]
        executable, *arguments = map(os.fspath, named['args'])
        if executable != sys.executable or (arguments[0].startswith('-') and arguments[0] not in ('-c', '-m')):
            raise ValueError(f'{named["args"][:2]} needs a process of subprocess: an own program, or flags of Python')
        environment = dict(os.environ if named['env'] is None else named['env'])
        server = None if named['preexec_fn'] else _server_for(environment, self._own_server)
        if server is None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        asked = {
            'arguments': arguments,
            'cwd': os.path.abspath(named['cwd'] or '.'),
            'environment': environment,
            'new_session': named['start_new_session'],
            'umask': named['umask'],
            'whole_exit': self._whole_exit,
            'hang_up_ignored': signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,  # as under nohup
            'pass_fds': sorted(named['pass_fds']),
        }
        theirs = (named['p2cread'], named['c2pwrite'], named['errwrite'])
        streams = [number if each == -1 else each for number, each in enumerate(theirs)]
        try:
            self.pid, self._answers = server.start(asked, [*streams, *asked['pass_fds']])
            self._child_created = True
        finally:
            self._close_pipe_fds(  # type: ignore[attr-defined]
                *(named[end] for end in ('p2cread', 'p2cwrite', 'c2pread', 'c2pwrite', 'errread', 'errwrite'))
            )

    def _internal_poll(self, *given: Any, **named: Any) -> Optional[int]:  # type: ignore[override]
        if self._answers is None:
            return super()._internal_poll(*given, **named)  # type: ignore[misc]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._answers is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc]
        if wait_flags and not select.select([self._answers], [], [], 0)[0]:
            return 0, 0
        with self._answers.makefile() as lines:
            status = int(lines.readline())
        self._answers.close()
        self._answers = None
        return self.pid, status


def run(
    command: list[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: Optional[float] = None,
    check: bool = False,
    **settings: Any,
) -> subprocess.CompletedProcess:
    """As :func:`subprocess.run`, with a :class:`Popen` of this module."""
    if capture_output:
        settings.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if input is not None:
        settings.update(stdin=subprocess.PIPE)
    with Popen(command, **settings) as process:
        try:
            output, errors = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
        done = subprocess.CompletedProcess(command, process.wait(), output, errors)
    if check:
        done.check_returncode()
    return done
