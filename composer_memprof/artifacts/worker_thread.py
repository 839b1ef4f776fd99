"""A thread that runs what must not hold up training but only waits: on a disk, on a network.

What computes in Python would hold the interpreter against the training loop from a thread too: see ``child``.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from composer_memprof.artifacts.exiting import exiting
from composer_memprof.signals import uninterrupted


@dataclass
class Job:
    """Work for a lane.

    Args:
        run (Callable): the work, which handles its own errors.
        owner (object): who waits for it.
        begin (Callable, optional): comes before it, on the thread that calls :meth:`WorkerThread.advance`.
    """

    run: Callable[[], None]
    owner: object
    begin: Optional[Callable[[], object]] = None


class WorkerThread:
    """A thread that runs jobs in order. It lives while a holder needs it.

    A job leaves the queue when it is done, so that the queue alone says what is still to be waited for: an exception
    that a signal raises, at whatever line, can't leave a count behind that never comes to nought.

    Args:
        name (str): of the thread.
        capacity (int): how many jobs have room, the one at work included.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self._jobs: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._holders = 0
        self._thread: Optional[threading.Thread] = None
        self._pid = os.getpid()

    def hold(self) -> None:
        with self._changed:
            if self._pid != os.getpid():  # a forked child has none of its parent's threads
                self._jobs.clear()
                self._holders, self._thread, self._pid = 0, None, os.getpid()
            self._holders += 1

    def release(self) -> None:
        """Ends the thread with its last holder, once the queue is empty."""
        with self._changed:
            self._holders -= 1
            self._changed.notify_all()
            thread = self._thread if self._holders == 0 and not self._jobs else None
        if thread is not None:
            thread.join(timeout=1)

    def has_room(self, owner: Optional[object] = None) -> bool:
        """Whether a further job may come, which the first of an ``owner`` always may."""
        if len(self._jobs) < self.capacity:
            return True
        return owner is not None and all(job.owner is not owner for job in list(self._jobs))

    def submit(self, job: Job) -> None:
        """Queue ``job``. Without a thread, at interpreter exit or because none can be had, it runs at once."""
        with self._changed:
            self._jobs.append(job)
            has_thread = self._has_thread()
            self._changed.notify_all()
        if not has_thread:
            self._run_here(job.owner)

    def advance(self) -> None:
        """Begin the next job, where it waits for that. Costs nothing to call when it does not."""
        job = self._jobs[0] if self._jobs else None
        if job is None or job.begin is None:
            return
        with uninterrupted():
            begin = job.begin
            try:
                begin()
            finally:
                with self._changed:
                    job.begin = None
                    self._changed.notify_all()

    def wait(self, owner: object, deadline: float) -> bool:
        """Until no job of ``owner`` is left, or ``deadline`` on the monotonic clock. True: none is left."""
        while any(job.owner is owner for job in list(self._jobs)):
            if time.monotonic() >= deadline:
                return False
            self.advance()
            with self._changed:
                has_thread = self._has_thread()
                if has_thread:
                    left = max(0.0, deadline - time.monotonic())
                    self._changed.wait_for(self._waits_for_someone, min(left, 1.0))
            if not has_thread:
                self._run_here(owner)
        return True

    def _waits_for_someone(self) -> bool:
        return not self._jobs or self._jobs[0].begin is not None

    def _run_here(self, owner: object) -> None:
        for job in [job for job in self._jobs if job.owner is owner]:
            job.begin = None  # at the exit, or without threads, nothing is forked either
            try:
                job.run()
            finally:
                self._jobs.remove(job)

    def _has_thread(self) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return True
        if exiting():
            return False
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # a limit on threads
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs or self._jobs[0].begin is not None:
                    if self._holders == 0 and not self._jobs:
                        self._thread = None
                        return
                    self._changed.wait()
                job = self._jobs[0]
            job.run()
            with self._changed:
                self._jobs.popleft()
                self._changed.notify_all()
            del job  # it may hold much memory while the lane waits for the next one
