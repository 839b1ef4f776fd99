"""Warnings for people, and the package's logger."""

from __future__ import annotations

import ast
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from composer.core import Timestamp

import composer_memprof
from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.store import ArtifactStore, Part
from composer_memprof.messages import MemprofWarning, errors_logged, log_error, logger, warn
from tests.conftest import child_environment

PACKAGE = Path(composer_memprof.__file__).parent


def python(code: str) -> str:
    """What a script writes to stderr."""
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=child_environment())
    assert run.returncode == 0, run.stderr
    return run.stderr


def test_what_is_warned_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.warns(MemprofWarning, match='composer_memprof: 100 % full'):
        warn('100 % full')
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ('composer_memprof', 'WARNING', '100 % full')
    ]


def test_a_traceback_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, 'composer_memprof'):
        try:
            raise RuntimeError('ours')
        except RuntimeError:
            log_error('HostRSS could not stop')
    assert 'HostRSS could not stop' in caplog.text
    assert 'RuntimeError: ours' in caplog.text and 'Traceback' in caplog.text
    assert caplog.records[0].levelno == logging.DEBUG


def test_where_logging_is_not_configured_a_warning_is_one_line_and_an_error_none() -> None:
    errors = python('from composer_memprof.messages import log_error, warn\nwarn("once")\nlog_error("never")')
    assert errors.count('once') == 1
    assert 'never' not in errors


def test_a_logged_warning_and_error_reach_the_handlers_of_the_user() -> None:
    errors = python(
        'import logging; logging.basicConfig(level="DEBUG", format="%(name)s %(levelname)s %(message)s")\n'
        'from composer_memprof.messages import log_error, warn\nwarn("once")\n'
        'try: 1 / 0\nexcept ZeroDivisionError: log_error("not so bad")'
    )
    assert 'composer_memprof WARNING once' in errors
    assert 'composer_memprof DEBUG not so bad\nTraceback' in errors and 'ZeroDivisionError' in errors


def test_neither_a_broken_handler_nor_warnings_as_errors_raise(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError('the log is gone')

    broken = Broken()
    logger.addHandler(broken)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            warn('still said')
            log_error('still quiet')
    finally:
        logger.removeHandler(broken)
    assert 'still said' in capsys.readouterr().err


def test_a_forked_child_does_not_wait_for_a_handlers_lock() -> None:
    # Such as a queue's mutex: after a fork, logging replaces its own locks and no others.
    class Locked(logging.Handler):
        mutex = threading.Lock()

        def emit(self, record: logging.LogRecord) -> None:
            with self.mutex:
                pass

    locked = Locked()
    logger.addHandler(locked)
    try:
        with locked.mutex:
            child = os.fork()
            if child == 0:
                with warnings.catch_warnings():
                    warnings.simplefilter('ignore')
                    warn('in the child')
                log_error('in the child')
                os._exit(7)
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
    finally:
        logger.removeHandler(locked)


def test_logging_at_interpreter_exit_is_safe() -> None:
    errors = python(
        'import atexit, logging\nfrom composer_memprof.messages import log_error, warn\n'
        'class Late:\n    def __del__(self): log_error("late"); warn("late")\n'
        'atexit.register(warn, "at exit")\nlate = Late()\nlogging.basicConfig(level="DEBUG")'
    )
    assert 'at exit' in errors and 'late' in errors
    assert 'Exception ignored' not in errors and 'Traceback' not in errors


def _catch_alls() -> list[tuple[str, ast.ExceptHandler]]:
    """Every handler of any error in the package, by its file and line."""
    found = []
    for path in sorted(PACKAGE.rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, ast.ExceptHandler):
                names = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else set()
                if not node.type or names & {'Exception', 'BaseException'}:
                    found.append((f'{path.relative_to(PACKAGE)}:{node.lineno}', node))
    return found


def _keeps_the_traceback(handler: ast.ExceptHandler) -> bool:
    """Whether it raises, logs, or passes the error itself on, as an argument or to an attribute."""
    for node in ast.walk(handler):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ('log_error', 'traceback.format_exc'):
                return True
            passed = [] if called in ('type', 'str', 'repr') else [*node.args, *(each.value for each in node.keywords)]
        elif isinstance(node, ast.Assign):
            passed = list(ast.walk(node.value))
        else:
            continue
        if any(isinstance(value, ast.Name) and value.id == handler.name for value in passed):
            return True
    return False


def test_no_error_that_is_caught_loses_its_traceback() -> None:
    catch_alls = _catch_alls()
    assert len(catch_alls) > 20
    # what logging itself raises, and what keeps the package from being imported
    own = ('messages.py', 'simulated_gpu/startup/sitecustomize.py')
    losing = [where for where, node in catch_alls if not _keeps_the_traceback(node)]
    assert [where for where in losing if not where.startswith(own)] == []
    suppressed = [
        path for path in PACKAGE.rglob('*.py') if re.search(r'suppress\((Base)?Exception\)', path.read_text())
    ]
    assert suppressed == []


def test_an_error_in_a_child_process_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def write(path: Path) -> None:
        raise RuntimeError('a bug of ours')

    store = ArtifactStore(Path('files').absolute(), Naming('{batch}', None, '.json'))
    with caplog.at_level(logging.DEBUG, 'composer_memprof'), pytest.warns(MemprofWarning, match='could not be written'):
        store.save([Part('host_rss', '.json', write)], Stamp('run', Timestamp()))
        store.close(20)
    (record,) = [record for record in caplog.records if 'Traceback' in record.getMessage()]
    assert record.levelno == logging.DEBUG
    assert "raise RuntimeError('a bug of ours')" in record.getMessage(), 'the line where it happened'


def test_a_block_whose_error_is_logged_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, 'composer_memprof'), errors_logged('cleaning up failed'):
        raise RuntimeError('ours')
    assert 'cleaning up failed' in caplog.text and 'RuntimeError: ours' in caplog.text
