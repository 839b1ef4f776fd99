"""What to do about failures: what memory, or waiting for another rank, is known to cause, and the user's own errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from composer_memprof.analysis.run import rank_list
from composer_memprof.analysis.run_report.advice import code
from composer_memprof.analysis.run_report.advice.kinds import Advice
from composer_memprof.analysis.run_report.failures import (
    Failure,
    in_collective,
    line_and_call,
    never_came,
    out_of_step,
    waited,
)

#: Where a line of a library begins.
_LIBRARIES = ('torch/', 'composer/', 'torchmetrics/', 'numpy/')
#: What torch says, and what ends it.
_KNOWN = (
    (
        r'stack expects each tensor to be equal size|each element in list of batch should be of equal size',
        Advice(
            'Give the DataLoader a collate_fn that pads: the samples of a batch differ in size.',
            "torch's default collate function stacks samples, which have to be of one size.",
            code=code.PADDED,
        ),
    ),
    (
        r'Expected to have finished reduction in the prior iteration',
        Advice(
            "Use all parameters in the loss, or freeze those without use: requires_grad_(False); or ddp_sync_strategy='forced_sync'.",
            'DDP waits for a gradient of each parameter that requires one; some had none in the batch before.',
            code=code.UNUSED_PARAMETERS,
        ),
    ),
    (
        r'device-side assert triggered',
        Advice(
            'Run once with CUDA_LAUNCH_BLOCKING=1: the line is then the one that fails. Most often an index is out of range.',
            'A GPU reports such an error later, at another line: labels beyond the number of classes, tokens beyond the vocabulary.',
            code=code.BLOCKING,
        ),
    ),
    (
        r'must have the same dtype|expected scalar type \w+ but found|Found dtype \w+ but expected',
        Advice(
            "Convert the input to the data type of the weights: NumPy's numbers are float64 (Double) unless told otherwise.",
            'An operation was given two data types.',
            code=code.SAME_DTYPE,
        ),
    ),
    (
        r'Target \d+ is out of bounds|index out of range in self|index \d+ is out of bounds',
        Advice(
            'Check the indices: one is beyond the size, as labels beyond the number of classes, or tokens beyond the vocabulary.',
            'The size of the last layer, or of the embedding, has to be larger than the largest index.',
            code=code.CHECKED_INDICES,
        ),
    ),
    (
        r'Expected all tensors to be on the same device',
        Advice(
            'Move the input to the device of the weights; make tensors with device=x.device.',
            'An operation was given tensors of two devices.',
            code=code.SAME_DEVICE,
        ),
    ),
    (
        r'backward through the graph a second time',
        Advice(
            'Detach what is carried from one batch to the next; retain_graph=True would keep the memory of all batches.',
            'A tensor of an earlier batch, whose graph is freed, is used in this one.',
            code=code.DETACHED_STATE,
        ),
    ),
    (
        r'modified by an inplace operation',
        Advice(
            'Write the operation that changes a tensor in place as one that makes a new tensor.',
            'Backward needs the value from before. torch.autograd.set_detect_anomaly(True) names the line of the forward.',
            code=code.NOT_IN_PLACE,
        ),
    ),
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
        r'No space left on device',
        Advice(
            'Free space on that disk, or keep fewer checkpoints.',
            'A file could not be written.',
            code=code.FEWER_CHECKPOINTS,
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


def against_failures(failures: Sequence[Failure], killed: Sequence[int] = ()) -> Iterator[Advice]:
    """What to do first about how a run ended; nothing if nothing is known of it.

    Args:
        failures (Sequence[Failure]): the first one first.
        killed (Sequence[int]): the ranks that wrote no end.
    """
    first = next(iter(failures), None)
    if first is not None and first.oom is None and first.origin == 'own':
        known = [advice for pattern, advice in _KNOWN if re.search(pattern, first.error)]
        yield from known[:1] or _of_own_error(first)
    elif (odd := in_collective(failures) if killed else out_of_step(failures)) is not None:
        line, call = line_and_call(odd)
        first_look = f'Look in the log of rank {rank_list(killed)} for how it ended. ' if killed else ''
        yield Advice(
            f'{first_look}Let all ranks call torch.distributed.{call} at {line}, or none: all ranks must make the same collective calls, '
            'in the same order.',
            'A call under `if rank == 0`, or in a loop that is longer on one rank, waits until the time-out, or the process group '
            'ends the process.',
            code=f'torch.distributed.{call}(…)  # on every rank: not under if rank == 0',
        )
    elif late := never_came(failures):
        ranks = rank_list([each.rank for each in late])
        place = f' at {late[0].line}' if late[0].line else ''
        yield Advice(
            f'Find out why rank {ranks} stayed{place}: all ranks must make the same collective calls, in the same order.',
            f'Rank {rank_list([each.rank for each in waited(failures)])} waited until the time-out of the process group. If '
            'the rank only needs longer, raise dist_timeout.',
            code=code.LONGER_TIMEOUT,
        )
    elif first is not None and first.origin == 'stopped' and not killed:
        yield Advice(
            'Save checkpoints and resume: save_folder, save_interval and autoresume=True; or give the job more time.',
            f'{_who_stops(first.error)} Composer raises it within the batch, so that what was trained since the last '
            'checkpoint is lost.',
            code=code.RESUME,
        )


def _who_stops(error: str) -> str:
    if error == 'SIGTERM':
        return 'A scheduler sends SIGTERM at the time limit or when the job is preempted, and a launcher after a rank failed.'
    if error == 'SIGINT':
        return 'It is the signal of Ctrl-C, or of a notebook that interrupts.'
    return f'The run was ended by {error}, from outside or by sys.exit.'


def _of_own_error(failure: Failure) -> Iterator[Advice]:
    """The line of the user's code that raised it, before what would make the run smaller or faster."""
    if failure.line and 'memory' not in failure.error.lower():
        kind = failure.error.partition(':')[0]
        if failure.line.startswith(_LIBRARIES):
            yield Advice(
                f'Read the error, and correct what is given to {failure.line}: rank {failure.rank} failed there with {kind}.',
                'No line of the run itself was in that call: a data set, a collate function, or the order of calls may be.',
            )
            return
        yield Advice(
            f'Correct {failure.line}: rank {failure.rank} failed there with {kind}.',
            'The run ended by that. Nothing that was recorded says that memory or time caused it.',
        )
