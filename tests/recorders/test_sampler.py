"""The thread that calls at an interval."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from composer_memprof.recorders.host.sampler import Sampler, uneven_intervals


def test_a_sampler_calls_at_its_interval_until_it_is_stopped() -> None:
    called: list[float] = []
    sampler = Sampler('test-sampler', 0.01, lambda: called.append(time.monotonic()))
    sampler.start()
    assert any(thread.name == 'test-sampler' and thread.daemon for thread in threading.enumerate())
    time.sleep(0.2)
    assert sampler.stop() and sampler.error is None
    count = len(called)
    assert 3 <= count <= 20
    assert all(later - earlier >= 0.009 for earlier, later in zip(called, called[1:]))
    time.sleep(0.05)
    assert len(called) == count
    assert not any(thread.name == 'test-sampler' for thread in threading.enumerate())


def test_the_first_error_of_a_sampler_ends_it_and_is_kept() -> None:
    called: list[int] = []

    def fail() -> None:
        called.append(len(called))
        raise OSError(f'error {len(called)}')

    sampler = Sampler('test-sampler', 0.001, fail)
    sampler.start()
    time.sleep(0.1)
    assert called == [0]
    assert sampler.stop() and str(sampler.error) == 'error 1'


def test_stopping_a_sampler_waits_no_longer_than_its_timeout_and_may_be_repeated() -> None:
    release = threading.Event()
    sampler = Sampler('test-sampler', 0.001, release.wait)
    sampler.start()
    time.sleep(0.05)
    began = time.monotonic()
    assert sampler.stop(timeout=0.05) is False
    assert time.monotonic() - began < 1
    assert sampler.stop(timeout=0) is False
    release.set()
    assert sampler.stop() is True
    with pytest.raises(RuntimeError, match='only once'):
        sampler.start()


def test_a_sampler_with_a_long_interval_stops_at_once() -> None:
    sampler = Sampler('test-sampler', 3600, lambda: None)
    sampler.start()
    began = time.monotonic()
    assert sampler.stop()
    assert time.monotonic() - began < 1


def test_uneven_intervals_see_each_moment_of_batches_as_often_as_it_lasts() -> None:
    times = list(itertools.accumulate(itertools.islice(uneven_intervals(0.05), 100)))
    assert times[-1] == pytest.approx(100 * 0.05, rel=0.02)
    for batch in (0.05, 0.1, 0.025, 0.051, 0.3):  # the interval itself, and multiples
        loading = [time % batch < 0.8 * batch for time in times]
        assert sum(loading) == pytest.approx(80, abs=8), batch
