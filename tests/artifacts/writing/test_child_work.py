"""The work of a child that writes: parts, imports, and how long others wait for it."""

from __future__ import annotations

import contextlib
import importlib.abc
import io
import logging
import os
import re
import resource
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from composer_memprof.analysis.memory.blocks.stack_times import StackTimes
from composer_memprof.artifacts.naming.names import Naming
from composer_memprof.artifacts.store import Part
from composer_memprof.artifacts.writing.child import fork as child_module
from composer_memprof.artifacts.writing.child.fork import fork
from composer_memprof.artifacts.writing.child.work import ReadAtFork
from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.messages import MemprofWarning
from tests.conftest import FEATURES, Regression, entries, make_trainer
from tests.support.stores import FOLDER, make_store, stamp, statuses, text

# -- parts --------------------------------------------------------------------------------------------------------------


def test_a_name_that_leaves_the_folder_loses_only_its_own_part(tmp_path: Path) -> None:
    FOLDER.mkdir()
    (FOLDER / 'out').symlink_to(tmp_path)
    store = make_store()
    parts = [
        text(),
        replace(text(kind='thing.link'), naming=Naming('out/x', None, '.txt')),
        replace(text(kind='thing.up'), naming=Naming('../x', None, '.txt')),
        replace(text(kind='thing.long'), naming=Naming('x' * 300, None, '.txt')),
        text(kind='thing.page', suffix='.html'),
    ]
    with pytest.warns(MemprofWarning, match='could not be written') as told:
        store.save(parts, stamp())
        store.close(20)
    saved = [entry.kind for entry in entries(FOLDER) if entry.status == 'saved']
    assert saved == ['thing', 'thing.page']
    assert sum('could not be written' in str(warning.message) for warning in told) == 3
    assert not list(FOLDER.glob('.*'))


class _Watch(importlib.abc.MetaPathFinder):
    """Notes what a forked child imports."""

    def __init__(self, log: Path) -> None:
        self._log, self._parent = log, os.getpid()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if os.getpid() != self._parent:
            with open(self._log, 'a') as log:
                log.write(f'{name}\n')


class _Large(Regression):
    """With weights that are large enough to be left out of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 1 << 16), torch.nn.ReLU(), torch.nn.Linear(1 << 16, 1))


@pytest.mark.parametrize('name', CALLBACKS)
def test_no_child_imports_anything_or_needs_the_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of an import that another thread was in at the fork is never released in the child."""
    for package in ('memray', 'viztracer'):
        if name.endswith(package):
            pytest.importorskip(package)
    callback = CALLBACKS[name](schedule={'skip': '1ba', 'active': '1ba'}, compress=True)
    trainer = make_trainer(callback, batches=3, model=_Large())
    log = tmp_path / 'imports'
    monkeypatch.setattr(sys, 'meta_path', [_Watch(log), *sys.meta_path])
    trainer.fit()
    trainer.close()
    assert not log.exists() or log.read_text() == ''
    assert set(statuses(Path('test-run'))) <= {'saved', 'removed'}
    assert statuses(Path('test-run'))['saved']


def test_a_full_disk_leaves_no_half_of_a_line_in_a_growing_file() -> None:
    store = make_store()
    growing = store.grow('thing', '.txt', stamp(0))
    assert store.flush(20)  # its line in the manifest
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    lines: list[str] = []
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(OSError, match='No space left'):
            while True:
                line = 'x' * 99 + str(len(lines))
                growing.write(line)
                lines.append(line)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (FOLDER / 'rank0.0.txt').read_text().splitlines() == lines
    store.close(20)


# -- patience -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_slow_child_lives_a_stuck_one_does_not_and_what_it_has_done_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, 'STUCK_S', 1.5)
    monkeypatch.setattr(child_module, '_LOOK_EVERY_S', 0.1)

    def compute(path: Path) -> None:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            sum(range(10_000))
        path.write_text('x')

    def hang(path: Path) -> None:
        time.sleep(60)

    store = make_store()
    with pytest.warns(MemprofWarning, match=r'died: it was stuck for 1.5 s in test_child_work.py:\d+ hang'):
        store.save([Part('thing', '.txt', compute), Part('thing.page', '.html', hang)], stamp())
        store.close(20)
    assert [(entry.kind, entry.status) for entry in entries(FOLDER)] == [('thing', 'saved'), ('thing.page', 'failed')]
    assert not list(FOLDER.glob('.*'))


def test_the_log_has_the_stack_of_a_child_that_was_stuck(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_module, 'STUCK_S', 1.5)
    monkeypatch.setattr(child_module, '_LOOK_EVERY_S', 0.1)
    lock = threading.Lock()

    def hang(path: Path) -> None:
        lock.acquire()

    store = make_store()
    with lock, caplog.at_level(logging.DEBUG, 'composer_memprof'), pytest.warns(MemprofWarning, match='in test_child'):
        store.save([Part('thing', '.txt', hang)], stamp())
        store.close(20)
    assert re.search(
        r'test_child_work.py", line \d+ in hang\n(  File .*\n)+.*parts.py", line \d+ in _write_whole', caplog.text
    )


def test_a_child_waits_for_no_lock_of_an_analysis_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window may be written on a thread, where no process can be forked for it, while the next one is forked."""
    monkeypatch.setattr(child_module, 'STUCK_S', 3.0)
    begun, end = threading.Event(), threading.Event()

    class Blocks(SimpleNamespace):
        def __init__(self, slow: bool) -> None:
            super().__init__(freed=np.zeros(1, np.int64), events=1, slow=slow)

        @property
        def stack(self) -> int:
            if self.slow:
                begun.set()
                assert end.wait(30)
            return 0

    def analyze(blocks: Any) -> np.ndarray:
        return StackTimes(None, blocks, np.ones(1, np.int8)).allocated_by  # type: ignore[arg-type]

    thread = threading.Thread(target=lambda: analyze(Blocks(slow=True)))
    thread.start()
    assert begun.wait(30)
    try:
        child = fork(lambda: [int(analyze(Blocks(slow=False)))])
        assert child is not None and child.results(30) == [1], child
    finally:
        end.set()
        thread.join()


def test_a_child_waits_for_no_stream_log_or_profiler_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, 'STUCK_S', 3.0)
    read, write = os.pipe()
    stream = io.TextIOWrapper(os.fdopen(write, 'wb', 1 << 16))
    monkeypatch.setattr(sys, 'stderr', stream)

    def fill() -> None:  # nobody reads: it holds the stream's lock
        with contextlib.suppress(OSError):
            stream.write('x' * (1 << 20))

    thread = threading.Thread(target=fill)
    thread.start()
    lock = threading.RLock()

    class Handler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            with lock:
                return True

    def work() -> Iterator[bool]:
        warnings.warn('of a library', stacklevel=1)
        sys.stderr.write('y')
        logging.getLogger('of.a.library').error('as well')
        yield sys.getprofile() is None and sys.gettrace() is None

    logging.getLogger('of.a.library').addHandler(handler := Handler())
    held = threading.Thread(target=lambda: (lock.acquire(), release.wait(30), lock.release()))
    release = threading.Event()
    held.start()
    sys.setprofile(lambda *_: None)
    try:
        child = fork(work)
        sys.setprofile(None)
        assert child is not None and child.results(30) == [True], child
    finally:
        sys.setprofile(None)
        logging.getLogger('of.a.library').removeHandler(handler)
        release.set()
        os.close(read)  # the write fails
        thread.join()
        held.join()


def test_what_waits_behind_a_stuck_child_is_written_by_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, 'STUCK_S', 1.5)
    monkeypatch.setattr(child_module, '_LOOK_EVERY_S', 0.1)
    store = make_store()
    page = text(kind='thing.page', suffix='.html')
    at_fork = ReadAtFork(lambda: None, lambda: None)
    with pytest.warns(MemprofWarning, match='it was stuck for 1.5 s'):
        store.save([text(), replace(page, write=lambda path: time.sleep(60))], stamp(1), read_at_fork=at_fork)
        for batch, read in ((2, at_fork), (3, None)):
            store.save([text(), page], stamp(batch), read_at_fork=read)
        store.close(60)
    assert {entry.batch for entry in entries(FOLDER) if entry.status == 'failed'} == {1}
    assert [entry.batch for entry in entries(FOLDER) if entry.status == 'saved'] == [1, 2, 2, 3, 3]


def test_a_child_is_done_when_it_says_so_even_if_another_process_holds_its_pipe_open() -> None:
    release, hold = os.pipe()

    def work() -> Iterator[int]:
        if os.fork() == 0:
            os.read(release, 1)
            os._exit(0)
        yield 7

    child = fork(work, keep=[release])
    assert child is not None
    begin = time.monotonic()
    try:
        assert child.results(20) == [7] and not child.failure
        assert time.monotonic() - begin < 15
    finally:
        os.close(hold)
        os.close(release)


def test_a_child_gives_way_to_everything_else() -> None:
    child = fork(lambda: [os.sched_getscheduler(0), os.nice(0)])
    assert child is not None and child.results(20) == [os.SCHED_IDLE, 19]


@pytest.mark.skipif(os.geteuid() != 0, reason='only root may raise a priority')
def test_a_child_that_somebody_waits_for_runs_as_everything_else_does() -> None:
    def write(path: Path) -> None:
        while os.sched_getscheduler(0) == os.SCHED_IDLE:
            time.sleep(0.05)
        path.write_text('x')

    store = make_store()
    store.save([Part('thing', '.txt', write)], stamp())
    assert store.flush(60)
    store.close(20)
