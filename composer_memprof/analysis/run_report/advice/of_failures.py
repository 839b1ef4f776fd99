"""What to do about failures: what memory, or waiting for another rank, is known to cause, and the user's own errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from composer_memprof.analysis.run import rank_list
from composer_memprof.analysis.run_report.advice import code
from composer_memprof.analysis.run_report.advice.kinds import Advice
from composer_memprof.analysis.run_report.failures import Failure, never_came, waited

#: What torch says, and what ends it.
_KNOWN = (
    (
        r'Bus error|out of shared memory|unable to (open|write to|mmap|resize|allocate) .*(shared memory|/torch_\d+)',
        Advice(
            'Give the job more shared memory (/dev/shm), or use fewer DataLoader workers or a smaller prefetch_factor.',
            'Workers hand over batches in shared memory, of which a container has 64 MiB unless it is told otherwise. In '
            'Kubernetes, mount an emptyDir of medium Memory at /dev/shm.',
            code=code.SHARED_MEMORY,
        ),
    ),
    (
        r'DataLoader worker .*(killed by signal|exited unexpectedly)',
        Advice(
            'Train with num_workers=0 once to see the error of the worker itself; if host memory was full, use fewer workers.',
            'A worker that is killed for host memory leaves no error of its own. HostRSS records the memory of each worker.',
            code=code.NO_WORKERS,
        ),
    ),
    (
        r'Too many open files|received \d+ items of ancdata',
        Advice(
            'Raise the limit of open files, or let workers hand over tensors by file name.',
            'Each tensor that a worker hands over keeps a file open until the tensor is freed.',
            code=code.FILE_SYSTEM,
        ),
    ),
)


def against_failures(failures: Sequence[Failure]) -> Iterator[Advice]:
    """What to do first about how a run ended; nothing if nothing is known of it.

    Args:
        failures (Sequence[Failure]): the first one first.
    """
    first = next(iter(failures), None)
    if first is not None and first.oom is None and first.origin == 'own':
        known = [advice for pattern, advice in _KNOWN if re.search(pattern, first.error)]
        yield from known[:1] or _of_own_error(first)
    elif late := never_came(failures):
        ranks = rank_list([each.rank for each in late])
        place = f' at {late[0].line}' if late[0].line else ''
        yield Advice(
            f'Find out why rank {ranks} stayed{place}: all ranks must make the same collective calls, in the same order.',
            f'Rank {rank_list([each.rank for each in waited(failures)])} waited until the time-out of the process group. If '
            'the rank only needs longer, raise dist_timeout.',
            code=code.LONGER_TIMEOUT,
        )


def _of_own_error(failure: Failure) -> Iterator[Advice]:
    """The line of the user's code that raised it, before what would make the run smaller or faster."""
    if failure.line and 'memory' not in failure.error.lower():
        kind = failure.error.partition(':')[0]
        yield Advice(
            f'Correct {failure.line}: rank {failure.rank} failed there with {kind}.',
            'The run ended by that. Nothing that was recorded says that memory or time caused it.',
        )
