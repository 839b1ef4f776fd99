"""A thread for work that mostly waits, on a disk or a network, and must not delay training.

Work that computes in Python belongs in a forked child (see ``child``): on a thread it would compete with the training
loop for the interpreter.
"""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

from composer_memprof import signals
from composer_memprof.artifacts.writing.deadlines import Deadline, exiting
from composer_memprof.signals import uninterrupted


@dataclass(eq=False)
class Job:
    """Work for a worker thread.

    Args:
        run (Callable): the work; it handles its own errors.
        owner (object): whose jobs :meth:`WorkerThread.wait` waits for.
        prepare (Callable, optional): called before ``run``, on the thread that calls :meth:`WorkerThread.prepare_next`.
        takes_room (bool): the job holds data until it is done, so that few may wait.
    """

    run: Callable[[], None]
    owner: object
    prepare: Optional[Callable[[], object]] = None
    takes_room: bool = True
    is_ready: bool = field(init=False)
    is_running: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.is_ready = self.prepare is None


class _Thread(threading.Thread):
    """A worker thread; never the training thread."""


def on_worker_thread() -> bool:
    """True on a thread of a :class:`WorkerThread`."""
    return isinstance(threading.current_thread(), _Thread)


class WorkerThread:
    """A thread that runs jobs in order. It lives as long as it has users.

    A job leaves the queue only when it is done, so that the queue alone says which jobs are left. A separate counter
    could become wrong when a signal raises an exception.

    Args:
        name (str): of the thread.
        capacity (int): number of jobs that take room, the running one included.
    """

    def __init__(self, name: str, capacity: int = 0) -> None:
        self.name = name
        self.capacity = capacity
        self._jobs: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._users = 0
        self._thread: Optional[threading.Thread] = None
        self._pid = os.getpid()

    def acquire(self) -> None:
        """Add a user."""
        with self._changed:
            if self._pid != os.getpid():  # in a forked child the parent's threads do not exist
                self._jobs.clear()
                self._users, self._thread, self._pid = 0, None, os.getpid()
            self._users += 1

    def release(self) -> None:
        """Remove a user. After the last one the thread ends, once the queue is empty."""
        with self._changed:
            self._users -= 1
            self._changed.notify_all()
            thread = self._thread if self._users == 0 and not self._jobs else None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1)

    def is_current(self) -> bool:
        """True on the thread itself."""
        return threading.current_thread() is self._thread

    def has_room(self, owner: Optional[object] = None) -> bool:
        """True if another job that takes room fits. An ``owner`` without such jobs may always add one."""
        jobs = [job for job in list(self._jobs) if job.takes_room]
        if len(jobs) < self.capacity:
            return True
        return owner is not None and all(job.owner is not owner for job in jobs)

    def wait_for_room(self, owner: object, deadline: Deadline, each_second: Callable[[], None]) -> None:
        """Wait until another job of ``owner`` fits, or until ``deadline``, or a signal whose handler is held."""
        self._wait_until(lambda: bool(signals.waiting) or self.has_room(owner), owner, deadline, each_second)

    def submit(self, job: Job) -> None:
        """Queue ``job``. If no thread can run (at interpreter exit, or at a limit on threads), run it now."""
        with self._changed:
            self._jobs.append(job)
            has_thread = self._has_thread()
            self._changed.notify_all()
        if not has_thread:
            self._run_here(job.owner)

    def prepare_next(self) -> None:
        """Prepare the next job if it has to be prepared. Otherwise the call costs nearly nothing."""
        job = self._jobs[0] if self._jobs else None
        if job is not None and job.prepare is not None:
            self._prepare(job)

    def prepare_all(self, may_go_on: Callable[[], bool]) -> None:
        """Prepare the next job, and further ones while ``may_go_on()``, because the next call may come much later."""
        self.prepare_next()
        for job in [job for job in list(self._jobs) if job.prepare is not None]:
            if not may_go_on():
                return
            self._prepare(job)

    def _prepare(self, job: Job) -> None:
        with uninterrupted():
            with self._changed:  # several threads may prepare
                prepare, job.prepare = job.prepare, None
            if prepare is None:
                return
            try:
                prepare()
            finally:
                with self._changed:
                    job.is_ready = True
                    self._changed.notify_all()

    def wait(self, owner: object, deadline: Deadline, each_second: Callable[[], None] = lambda: None) -> bool:
        """Wait until ``owner`` has no job left, or until ``deadline``; True if none is left.

        ``each_second`` is called about once a second during the wait.
        """
        return self._wait_until(lambda: not self.has_jobs(owner), owner, deadline, each_second)

    def has_jobs(self, owner: object) -> bool:
        """True if ``owner`` has a job left."""
        return any(job.owner is owner for job in list(self._jobs))

    def _wait_until(
        self,
        condition: Callable[[], bool],
        owner: object,
        deadline: Deadline,
        each_second: Callable[[], None] = lambda: None,
    ) -> bool:
        if self.is_current():  # a Trainer that nobody closed was collected here
            self._run_here(owner)
            return condition()
        while not condition():
            each_second()
            left = deadline.left()
            if not left:
                return False
            self.prepare_next()
            with self._changed:
                has_thread = self._has_thread()
                if has_thread:
                    self._changed.wait_for(lambda: condition() or self._waits_for_prepare(), min(left, 1.0))
            if not has_thread:
                self._run_here(owner)
        return True

    def _waits_for_prepare(self) -> bool:
        return bool(self._jobs) and self._jobs[0].prepare is not None

    def _cannot_run(self) -> bool:
        """True if there is no job, or the next one is not prepared, or another thread runs it."""
        return not self._jobs or not self._jobs[0].is_ready or self._jobs[0].is_running

    def _run_here(self, owner: object) -> None:
        while (job := self._claim(owner)) is not None:
            try:
                job.run()
            finally:
                self._remove(job)

    def _claim(self, owner: object) -> Optional[Job]:
        """Take the next job of ``owner`` to run it on this thread. A job may submit another one; another thread may appear."""
        with self._changed:
            job = next((job for job in self._jobs if job.owner is owner and not job.is_running), None)
            if job is not None:
                job.is_running = True
                job.prepare, job.is_ready = None, True  # to prepare is to fork, which fails if no thread can start
            return job

    def _remove(self, job: Job) -> None:
        with self._changed:
            self._jobs.remove(job)
            self._changed.notify_all()

    def _has_thread(self) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return True
        if exiting():
            return False
        thread = _Thread(target=self._run, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # a limit on threads
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._cannot_run():
                    if self._users == 0 and not self._jobs:
                        self._thread = None
                        return
                    self._changed.wait()
                job = self._jobs[0]
                job.is_running = True
            try:
                job.run()
            finally:
                self._remove(job)
            del job  # its data may be large; do not keep it while waiting for the next job
