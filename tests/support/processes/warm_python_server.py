"""The process behind :mod:`tests.support.processes.warm_python`: it imports once and forks a child for each request.

It serves all processes of one run of the tests, and ends with the last that has connected.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Optional

from tests.support.without_transformers import leave_transformers_to_those_who_import_it

#: More than three streams and the sockets that a test passes on.
MOST_DESCRIPTORS = 16
#: What most jobs of the tests import, beside the package.
_USED_BY_JOBS = (
    'torch',
    'torch._dynamo',
    'torch.profiler',
    'torch.distributed.fsdp',
    'torch.distributed._tools.mem_tracker',
    'composer',
    'tests.conftest',
    'tests.support.small_training',
    # What commands import when they are called.
    *(
        'pydantic.fields',
        'pydantic.main',
        'pydantic.type_adapter',
        'plotly',
        'numpy.ma',
        'zoneinfo',
        'rich._emoji_codes',
    ),
)
#: With this variable in its environment, a server imports nothing.
NOTHING_VARIABLE = 'WARM_PYTHON_IMPORTS_NOTHING'
#: What the server has imported, by name.
_IMPORTED: dict[str, ModuleType] = {}
#: These act when they are imported, are run by their names, or need a package that need not be installed.
_NOT_IMPORTED = ('composer_memprof.simulated_gpu.startup', 'composer_memprof.loop.for_')
_RUN_BY_NAME = '__main__'


def serve(entrance: int) -> CodeType:
    """Import, then fork a child for each request. Returns in a child only, with the code that it has to run.

    The caller runs that code at the top of the interpreter, so that the child ends as any Python does.

    Args:
        entrance (int): the descriptor of a listening socket. Those who connect to it send requests.
    """
    atexit.register(_leave_modules)  # the first to be registered, so that it runs last
    if NOTHING_VARIABLE not in os.environ:
        _import_all()
    _IMPORTED.update(sys.modules)
    if threading.active_count() != 1 or len(os.listdir('/proc/self/task')) != 1:
        raise RuntimeError('an import has started a thread, which a child would not have')
    return _Forking(socket.socket(fileno=entrance)).serve()


class _Forking:
    """Forks children for all who have connected."""

    def __init__(self, entrance: socket.socket) -> None:
        self._entrance = entrance
        self._selector = selectors.DefaultSelector()
        self._selector.register(entrance, selectors.EVENT_READ)
        self._askers: dict[int, socket.socket] = {}
        self._running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of a child: its number, who waits

    def serve(self) -> CodeType:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._entrance.fileno():
                    self._let_in()
                elif key.fd in self._running:
                    self._ended(key.fd)
                else:
                    code = self._asked(key.fd)
                    if code is not None:
                        return code

    def _let_in(self) -> None:
        asker, _ = self._entrance.accept()
        _, user, _ = struct.unpack('3i', asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.getuid():  # anybody on the machine can connect
            asker.close()
            return
        asker.sendall(b'ready')
        self._askers[asker.fileno()] = asker
        self._selector.register(asker, selectors.EVENT_READ)

    def _ended(self, watched: int) -> None:
        pid, waiting = self._running.pop(watched)
        self._selector.unregister(watched)
        os.close(watched)
        _answer(waiting, os.waitpid(pid, 0)[1])
        waiting.close()

    def _asked(self, asker: int) -> Optional[CodeType]:
        """The code of the child, in the child; None in this process."""
        message, descriptors, _, _ = socket.recv_fds(self._askers[asker], 1 << 20, MOST_DESCRIPTORS)
        if not message:
            self._selector.unregister(asker)
            self._askers.pop(asker).close()
            if not self._askers:
                os._exit(0)
            return None
        waiting = socket.socket(fileno=descriptors.pop(0))
        pid = os.fork()
        if pid == 0:
            self._leave(waiting)
            return become(json.loads(message), descriptors)
        for each in descriptors:
            os.close(each)
        watched = os.pidfd_open(pid)
        self._running[watched] = (pid, waiting)
        self._selector.register(watched, selectors.EVENT_READ)
        _answer(waiting, pid)
        return None

    def _leave(self, waiting: socket.socket) -> None:
        """Close in a child what is the server's."""
        self._selector.close()
        for each in self._running:
            os.close(each)
        for other in (self._entrance, waiting, *self._askers.values(), *(other for _, other in self._running.values())):
            other.close()


def _import_all() -> None:
    with_composer = importlib.util.find_spec('composer') is not None
    leave_transformers_to_those_who_import_it()
    for name in _USED_BY_JOBS:
        if with_composer or name not in ('composer', 'tests.support.small_training'):
            importlib.import_module(name)
    package = importlib.import_module('composer_memprof')
    for module in pkgutil.walk_packages(package.__path__, 'composer_memprof.'):
        if not module.name.startswith(_NOT_IMPORTED) and not module.name.endswith(_RUN_BY_NAME):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if with_composer or error.name != 'composer':
                    raise
    if with_composer:  # a Trainer asks for it once in each process, and it takes a second
        importlib.import_module('composer.utils.collect_env').get_cpu_model()
    gc.collect()
    gc.freeze()  # children share these objects, and end a second sooner
    tempfile.tempdir = None  # found anew in each child, by its environment


def _leave_modules() -> None:
    """Leave the server's modules to the operating system, when a child ends.

    To take their objects apart would copy most pages that the child shares with the server. What the child itself has
    imported or made is taken apart as always.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_IMPORTED))
    for name in _IMPORTED.keys() - {'builtins', 'sys', '__main__'}:
        sys.modules.pop(name, None)


def _answer(waiting: socket.socket, number: int) -> None:
    try:
        waiting.sendall(f'{number}\n'.encode())
    except OSError:
        pass  # nobody waits any longer


def become(asked: dict[str, Any], descriptors: list[int]) -> CodeType:
    """Make this child a process as a fresh one is, and return the code of its ``__main__``."""
    if asked['new_session']:
        os.setsid()
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 200) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for each, number in zip(moved, (0, 1, 2, *asked['pass_fds'])):
        os.dup2(each, number)
        os.close(each)
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(line_buffering=stream.isatty())  # type: ignore[union-attr]
    os.chdir(asked['cwd'])
    if asked['umask'] >= 0:
        os.umask(asked['umask'])
    signal.signal(signal.SIGHUP, signal.SIG_IGN if asked['hang_up_ignored'] else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(asked['environment'])
    if asked['whole_exit']:
        atexit.unregister(_leave_modules)
    elif 'torch' in sys.modules:  # torch's destructors take 0.2 s, for the same reason as modules
        importlib.import_module('composer_memprof.recorders.kineto').leave_libraries_at_exit()
    if 'numpy' in sys.modules:
        sys.modules['numpy'].random.seed()
    # The file of a rank's shard, which Composer names when it is imported.
    checkpoints: Any = sys.modules.get('composer.utils.checkpoint')
    if checkpoints is not None:
        checkpoints._TORCH_DISTRIBUTED_CHECKPOINTS_FILENAME = f'__{os.environ.get("RANK", 0)}_0.distcp'
    sys.orig_argv[:] = [sys.executable, *asked['arguments']]
    kind, *rest = asked['arguments']
    main = vars(sys.modules['__main__'])
    main.clear()
    main.update(
        __name__='__main__',
        __doc__=None,
        __package__=None,
        __loader__=importlib.machinery.BuiltinImporter,
        __spec__=None,
        __annotations__={},
        __builtins__=builtins,
    )
    if kind == '-c':
        sys.argv[:] = ['-c', *rest[1:]]
        sys.path[0] = ''
        return compile(rest[0], '<string>', 'exec', dont_inherit=True)
    if kind == '-m':
        sys.argv[:] = ['-m', *rest[1:]]
        sys.path[0] = os.getcwd()
        sys.modules.pop(rest[0], None)  # runs anew, and runpy warns of a module that is there already
        return compile(f"__import__('runpy')._run_module_as_main({rest[0]!r})", '<string>', 'exec', dont_inherit=True)
    sys.argv[:] = [kind, *rest]
    sys.path[0] = str(Path(kind).resolve().parent)
    path = os.path.abspath(kind)
    loader = importlib.machinery.SourceFileLoader('__main__', path)
    main.update(__file__=path, __cached__=None, __loader__=loader)
    return compile(Path(kind).read_bytes(), path, 'exec', dont_inherit=True)
