"""The descriptors of a child that writes: ports, outputs and locks, and when no file is left to open."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from composer_memprof.artifacts.store import Part
from tests.conftest import entries, wait_for
from tests.support.stores import FOLDER, make_store, run_script, stamp, statuses

# -- what a child holds -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_trainings_port_and_output_are_free_while_its_child_writes() -> None:
    script = """
        import os, signal, socket, time
        from pathlib import Path
        from tests.support.stores import make_store, stamp
        from tests.support.stores import slow_part
        server = socket.create_server(('127.0.0.1', 0))
        store = make_store()
        store.save([slow_part(5)], stamp())
        Path('port').write_text(str(server.getsockname()[1]))
        print('training', flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    begin = time.monotonic()
    run = run_script(script)  # returns when nobody has its output open
    assert run.returncode == -signal.SIGKILL and run.stdout == 'training\n'
    wait_for(lambda: _is_free(int(Path('port').read_text())), 10)  # the child closes what it inherits one after another
    assert time.monotonic() - begin < 60 and not (FOLDER / 'rank0.4.txt').exists(), 'the child still writes'
    wait_for(lambda: statuses(FOLDER)['saved'] == 1, 60)


def _is_free(port: int) -> bool:
    with socket.socket() as again:
        try:
            again.bind(('127.0.0.1', port))
        except OSError:
            return False
    return True


#: Leaves ``free`` files to open.
NO_FILES = """
    import os, resource, sys, threading, time, warnings
    from pathlib import Path
    from composer_memprof.artifacts.writing.child.fork import fork
    from tests.support.stores import FOLDER, Part, make_store, stamp, text
    taken = []

    def leave(free, hard=resource.getrlimit(resource.RLIMIT_NOFILE)[1]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            for descriptor in taken[-free:] if free else ():
                os.close(taken.pop())

    def free_in(seconds):
        timer = threading.Timer(seconds, lambda: list(map(os.close, taken)))
        timer.daemon = True
        timer.start()

    def save_and_print(store, part, **how):
        with warnings.catch_warnings(record=True) as said:
            began = time.monotonic()
            store.save([part], stamp(2), **how)
            print(f'{time.monotonic() - began:.0f}')
            store.flush(20)
            store.close(20)
        for warning in said:
            print(warning.message)
"""


def test_a_child_needs_no_more_files_than_its_pipes(tmp_path: Path) -> None:
    script = """
    os.dup2(0, 200)
    leave(4, hard=100)
    child = fork(lambda: [Path('written').write_text('x')], in_turn=True)
    print(child.results(), child.failure)
    """
    assert run_script(NO_FILES + script, cwd=tmp_path).stdout == '[1] \n'


def test_a_child_opens_as_many_files_as_the_machine_lets_it(tmp_path: Path) -> None:
    script = """
    leave(4)
    child = fork(lambda: [len([open(os.devnull) for _ in range(20)])], in_turn=True)
    print(child.results(), child.failure)
    """
    assert run_script(NO_FILES + script, cwd=tmp_path).stdout == '[20] \n'


@pytest.mark.parametrize('is_first', [True, False])
def test_where_no_file_is_left_to_open_a_window_is_written_once_one_is_free(is_first: bool) -> None:
    script = """
    store = make_store()
    if sys.argv[1] == 'False':
        store.save([text()], stamp(1))
        store.flush(20)
    leave(0)
    free_in(0.5)
    save_and_print(store, text())
    """
    run = run_script(NO_FILES + script, str(is_first))
    saved = [2] if is_first else [1, 2]
    assert [(entry.batch, entry.status) for entry in entries(FOLDER)] == [(batch, 'saved') for batch in saved], (
        run.stderr
    )
    assert run.stdout == '0\n'


def test_what_was_written_is_not_written_again_because_no_file_was_left_after_it() -> None:
    script = """
    written = []
    def write(path):
        time.sleep(2.1)
        path.write_text('x')
        written.append(path)
        leave(0)
        free_in(0.3)
    store = make_store()
    store.save([text()], stamp(1))
    store.flush(20)
    leave(1)
    save_and_print(store, Part('thing', '.txt', write))
    print(len(written), *sorted(os.listdir(FOLDER)))
    """
    run = run_script(NO_FILES + script)
    warning = "composer_memprof: waiting for the last files to be written to '"
    lines = [line for line in run.stdout.splitlines() if not line.startswith(warning)]
    assert lines == ['0', '1 rank0.1.txt rank0.2.txt rank0.manifest.jsonl'], run.stderr
    assert statuses(FOLDER) == {'saved': 2}


@pytest.mark.parametrize('inline', [True, False])
def test_a_window_for_which_no_file_gets_free_is_listed_as_failed_and_the_training_waits_for_none(inline: bool) -> None:
    script = """
    store = make_store()
    store.save([text()], stamp(1))
    store.flush(20)
    leave(0)
    save_and_print(store, text(), inline=sys.argv[1] == 'True')
    """
    run = run_script(NO_FILES + script, str(inline))
    listed = [(entry.batch, entry.status) for entry in entries(FOLDER, 'thing')]
    assert listed == [(1, 'saved'), (2, 'failed')], run.stderr
    error = "OSError: [Errno 24] Too many open files: '"
    held, said = run.stdout.splitlines()
    assert int(held) < 3 and said.startswith(f'composer_memprof: thing of batch 2 could not be written: {error}')
    assert said.endswith("'. Raise the limit of open files: ulimit -n")


def test_a_child_keeps_the_manifests_lock_so_that_push_knows_of_it() -> None:
    store = make_store()
    with open('lock of the training', 'w'):
        store.save([Part('thing', '.txt', lambda path: path.write_text('\n'.join(open_files())))], stamp())
        store.close(20)
    held = [Path(name) for name in (FOLDER / 'rank0.4.txt').read_text().splitlines()]
    assert [path.name for path in held if Path.cwd() in path.parents and path.suffix != '.tmp'] == [
        'rank0.manifest.jsonl'
    ]


def open_files() -> list[str]:
    links = [os.path.join('/proc/self/fd', name) for name in os.listdir('/proc/self/fd')]
    return sorted({os.readlink(link) for link in links if os.path.exists(link)} - {os.devnull})
