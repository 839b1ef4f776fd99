"""What is advised after a failure that memory, or waiting for another rank, is known to cause."""

from __future__ import annotations

import pytest

from composer_memprof.analysis.memory.summary import OutOfMemorySummary
from composer_memprof.analysis.run_report.advice.of_failures import against_failures
from composer_memprof.analysis.run_report.failures import Failure


def failure(error: str, rank: int = 0, **more: str) -> Failure:
    return Failure(rank, 3, '', error, None, **more)


@pytest.mark.parametrize(
    ('error', 'words'),
    [
        # as torch 2.7 words them
        (
            'RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that '
            "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
            'more shared memory',
        ),
        ('RuntimeError: unable to write to file </torch_12_34_0>: No space left on device (28)', 'more shared memory'),
        (
            'RuntimeError: unable to mmap 1024 bytes from file </torch_1_2>: Cannot allocate memory (12)',
            'shared memory',
        ),
        ('RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ', 'num_workers=0'),
        ('RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly', 'num_workers=0'),
        ('OSError: [Errno 24] Too many open files', 'open files'),
        ('RuntimeError: received 0 items of ancdata', 'open files'),
    ],
)
def test_a_known_failure_has_its_advice(error: str, words: str) -> None:
    (advice,) = against_failures([failure(error)])
    assert words in advice.what
    assert advice.code


def test_of_an_error_of_the_users_code_its_line_is_to_be_corrected() -> None:
    (advice,) = against_failures([failure('ValueError: shard 17 is damaged', line='/data/train.py:7 in forward')])
    assert advice.what == 'Correct /data/train.py:7 in forward: rank 0 failed there with ValueError.'
    assert not list(against_failures([failure('MemoryError: no room', line='/data/train.py:7 in forward')]))


def test_of_a_run_that_a_signal_stopped_the_next_one_is_to_resume() -> None:
    (advice,) = against_failures([failure('SIGTERM')])
    assert 'autoresume=True' in advice.what
    assert 'preempted' in advice.why
    assert not list(against_failures([failure('SIGTERM')], killed=[1]))


def test_of_a_collective_call_that_one_rank_made_alone_its_line_is_named() -> None:
    called = failure(
        'RuntimeError: Timed out waiting 8000ms', line='train.py:7 in forward, in torch.distributed.barrier'
    )
    other = failure(
        'RuntimeError: Connection closed by peer', rank=1, line='torch/autograd/graph.py:824 in _engine_run_backward'
    )
    (advice,) = against_failures([called, other])
    assert advice.what.startswith('Let all ranks call torch.distributed.barrier at train.py:7 in forward, or none')
    (advice,) = against_failures([called], killed=[1])
    assert advice.what.startswith('Look in the log of rank 1')
    alike = failure('RuntimeError: Connection closed by peer', rank=1, line=called.line or '')
    assert not list(against_failures([called, alike]))


def test_of_an_error_in_a_library_its_line_is_not_to_be_corrected() -> None:
    (advice,) = against_failures([failure('ValueError: no', line='torch/nn/functional.py:7 in linear')])
    assert advice.what.startswith('Read the error')


def test_of_other_failures_nothing_is_advised() -> None:
    ran_out = Failure(0, 3, 'forward', 'Bus error', OutOfMemorySummary(*[None] * 9, '', []))
    for failures in ([], [failure('ValueError: shard 17 is damaged')], [ran_out]):
        assert not list(against_failures(failures))


def test_of_a_rank_that_never_came_its_line_is_named() -> None:
    waited = failure('RuntimeError: Timed out waiting 8000ms', time='2026-01-01T00:00:10')
    late = failure('SIGTERM', rank=1, line='train.py:7 in forward', time='2026-01-01T00:00:12')
    (advice,) = against_failures([waited, late])
    assert 'rank 1 stayed at train.py:7 in forward' in advice.what
    assert not list(against_failures([waited, failure('SIGTERM', rank=1, time='2026-01-01T00:00:02')]))
