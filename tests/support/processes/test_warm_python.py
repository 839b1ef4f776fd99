"""The forked processes that take the place of fresh ones in the tests."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import child_environment, simulated_gpu, wait_for
from tests.support.processes import warm_python
from tests.support.processes.simulated_runs import QUIET
from tests.support.processes.warm_python_server import NOTHING_VARIABLE

#: Fresh and forked processes must do the same.
BOTH = pytest.mark.parametrize(
    'run',
    [subprocess.run, warm_python.run, functools.partial(warm_python.run, whole_exit=True)],
    ids=['fresh', 'warm', 'warm with a whole exit'],
)

ENDS = """
import atexit, ctypes, os, signal, sys, threading, time
if sys.argv[1] == 'interrupt': import composer  # what it does at exit changes the status
atexit.register(print, 'at exit 1')
atexit.register(lambda: print('at exit 2'))
threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.fputs(b'from C\\n', ctypes.c_void_p(libc.fdopen(1, b'w')))
how = sys.argv[1]
if how == 'raise': raise KeyError('x')
if how == 'interrupt': signal.default_int_handler(2, None)
if how == 'killed': sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)
if how == 'exit': sys.exit('a message')
if how == '7': sys.exit(7)
"""


def python(*arguments: Any, run: Any = warm_python.run, **settings: Any) -> subprocess.CompletedProcess[str]:
    settings = {'env': child_environment(), 'capture_output': True, 'text': True, 'timeout': 100, **settings}
    return run([sys.executable, *map(str, arguments)], **settings)


@BOTH
@pytest.mark.parametrize(
    ('how', 'status', 'error'),
    [
        ('return', 0, ''),
        ('raise', 1, "KeyError: 'x'"),
        ('interrupt', 1, 'KeyboardInterrupt'),
        ('killed', -signal.SIGKILL, ''),
        ('exit', 1, 'a message'),
        ('7', 7, ''),
    ],
)
def test_it_ends_as_any_python_does(run: Any, how: str, status: int, error: str) -> None:
    done = python('-c', ENDS, how, run=run)
    assert done.returncode == status
    assert done.stdout == ('' if how == 'killed' else 'thread\nat exit 2\nat exit 1\nfrom C\n')
    assert done.stderr.strip().split('\n')[-1] == error


def test_code_a_module_and_a_script_are_the_main_module_as_in_a_fresh_process() -> None:
    code = (
        'import os, sys\n'
        "main = sys.modules['__main__']\n"
        "names = sorted(name for name in vars(main) if name not in ('os', 'sys', 'main', 'self', '__annotations__'))\n"
        'print(__name__, __spec__ and __spec__.name, names, sys.argv, sys.orig_argv[1:2], sys.path[0], os.getcwd())\n'
        "print(sys.stdin.read(), os.umask(0), sorted(os.listdir('/proc/self/fd'))[:3], os.getsid(0) == os.getpid())\n"
    )
    Path('folder').mkdir()
    Path('folder/job.py').write_text(code)
    Path('said.txt').write_text('from the file')
    for command in (('-c', code, 'x'), ('-m', 'folder.job', 'x'), ('folder/job.py', 'x')):
        said = []
        for each in (subprocess.run, warm_python.run):
            with open('said.txt') as stdin:
                said.append(python(*command, run=each, stdin=stdin, umask=0o27, start_new_session=True))
        assert said[0].stdout == said[1].stdout, said[1].stderr
        assert said[0].stdout.startswith('__main__ ') and 'from the file 23 ' in said[0].stdout, said[0].stderr


def test_it_has_its_own_number_environment_and_folder(tmp_path: Path) -> None:
    code = (
        'import os, sys, torch\n'
        "print(os.getpid(), os.environ['AWS_REGION'], os.environ.get('HOME'), os.getcwd(), torch.get_num_threads())"
    )
    environment = child_environment(AWS_REGION='here', OMP_NUM_THREADS='1')
    del environment['HOME']
    (tmp_path / 'inner').mkdir()
    settings: dict[str, Any] = {'stdout': subprocess.PIPE, 'text': True, 'cwd': 'inner'}
    with warm_python.Popen([sys.executable, '-c', code], env=environment, **settings) as process:
        output, _ = process.communicate(timeout=60)
    assert output == f'{process.pid} here None {tmp_path / "inner"} 1\n'
    assert process.returncode == process.poll() == process.wait() == 0


def test_signals_reach_it_and_a_wait_ends_in_time() -> None:
    code = 'import os, time; print("ready", flush=True); time.sleep(60)'
    with warm_python.Popen(
        [sys.executable, '-c', code], env=child_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == 'ready\n'
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.kill()
        assert process.wait(20) == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        warm_python.run([sys.executable, '-c', code], env=child_environment(), stdout=subprocess.DEVNULL, timeout=0.5)


def test_variables_that_libraries_read_at_an_import_are_never_those_of_another_process() -> None:
    code = "import os; print(hash('x'), os.environ['PYTHONHASHSEED'], os.getppid())"
    hashes, seeds, parents = [], [], []
    for own_server in (False, True, True):
        environment = child_environment(PYTHONHASHSEED='7', **{NOTHING_VARIABLE: ''})
        done = python('-c', code, env=environment, own_server=own_server)
        for told, value in zip((hashes, seeds, parents), done.stdout.split()):
            told.append(int(value))
    assert seeds == [7, 7, 7] and len(set(hashes)) == 1
    assert parents[0] == os.getpid() != parents[1] == parents[2]


PARENT = 'import os; print(os.getppid())'
OF_ANOTHER_PROCESS = f"""
import sys
from tests.support.processes import warm_python
warm_python.run([sys.executable, '-c', {PARENT!r}])
"""


def test_processes_of_one_run_share_a_server_that_ends_with_the_last() -> None:
    environment = child_environment(PYTHONHASHSEED='8', **{NOTHING_VARIABLE: ''})
    server = python('-c', PARENT, env=environment, own_server=True).stdout
    found = {}
    for name in (warm_python.RUN, 'another run'):
        theirs = {**environment, 'PYTEST_XDIST_TESTRUNUID': name}
        found[name] = python('-c', OF_ANOTHER_PROCESS, env=theirs, run=subprocess.run).stdout
    assert found[warm_python.RUN] == server != found['another run'] != ''
    assert python('-c', PARENT, env=environment, own_server=True).stdout == server, 'another process has left it'
    command = Path('/proc', found['another run'].strip(), 'cmdline')
    wait_for(lambda: not command.exists() or not command.read_bytes(), seconds=30)


def test_the_file_of_a_rank_is_that_ranks_own() -> None:
    code = 'from composer.utils import checkpoint; print(checkpoint._TORCH_DISTRIBUTED_CHECKPOINTS_FILENAME)'
    for rank in ('2', '13'):
        done = python('-c', code, env=child_environment(RANK=rank, WORLD_SIZE='16'))
        assert done.stdout == f'__{rank}_0.distcp\n', done.stderr


def test_a_simulated_gpu_is_the_one_that_was_asked_for() -> None:
    code = 'import torch; print(torch.cuda.get_device_name(), torch.cuda.device_count())'
    for gpu, devices, name in (('t4', 2, 'Tesla T4'), ('a100-40gb', 1, 'NVIDIA A100-SXM4-40GB')):
        done = python('-c', code, env={**simulated_gpu(gpu, devices=devices), **QUIET}, own_server=True)
        assert done.stdout == f'{name} {devices}\n', done.stderr


def test_flags_of_python_and_other_programs_are_refused() -> None:
    for command in ([sys.executable, '-I', '-c', ''], ['true']):
        with pytest.raises(ValueError, match='needs a process of subprocess'):
            warm_python.run(command)
