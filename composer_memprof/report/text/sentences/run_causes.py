"""Causes in sentences: what it is, where, and how much it costs."""

from __future__ import annotations

from composer_memprof.analysis.run import rank_list
from composer_memprof.analysis.run_report.causes.kinds import (
    SLOW,
    WORKERS,
    Cause,
    Collecting,
    Compiling,
    CopiedByWorkers,
    DeviceLeak,
    HostFull,
    HostLeft,
    LeakBetweenWindows,
    LeftWhole,
    Slowing,
    SmallMicrobatches,
    Straggler,
    TimeTaken,
    Waiting,
)
from composer_memprof.analysis.run_report.causes.ran_out_kinds import RAN_OUT
from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.messages import count_of, human_bytes
from composer_memprof.recorders.host.summary import CopiedObjects
from composer_memprof.recorders.step_times.lines import ALGORITHMS, CALLBACKS, LOOP, LOSS, METRICS, STEP
from composer_memprof.recorders.step_times.summary import DATA, REST
from composer_memprof.report.text.amounts import amount
from composer_memprof.report.text.sentences.run_out_of_memory import out_of_memory_sentence
from composer_memprof.vocabulary import CHECKPOINT, EVAL

#: Batches that are this many times as large explain a straggler, and so does this share of what it takes longer.
_LARGER, _EXPLAINS = 1.2, 0.5
_PHASES = {
    REST: 'time between the phases',
    DATA: 'loading of data',
    EVAL: 'evaluation',
    CHECKPOINT: 'saving of checkpoints',
}
#: What takes the time of a phase.
_TAKERS = {
    EVAL: 'Evaluation takes',
    CHECKPOINT: 'Saving checkpoints takes',
    REST: 'What runs between the phases, such as callbacks and loggers, takes',
    CALLBACKS: 'Callbacks take',
    ALGORITHMS: 'Algorithms take',
    METRICS: 'Metrics of the training take',
    LOSS: 'The loss takes',
    STEP: "The optimizer's own Python code takes",
    LOOP: "The loop's own code beside forward, backward and the update takes",
    WORKERS: "Starting the DataLoader's workers again in each epoch takes",
}


def cause_sentence(cause: Cause, report: RunReport) -> str:
    """One sentence about a cause, or two."""
    rank = on_rank(cause.rank, report)
    if isinstance(cause, SLOW):
        return _slow(cause, rank)
    if isinstance(cause, DeviceLeak):
        return _leak(cause, rank, is_full=any(each.rank == cause.rank and each.oom for each in report.failures))
    if isinstance(cause, LeakBetweenWindows):
        whose = 'Host memory' if cause.on_host else 'Memory'
        return (
            f'{whose} leaks{rank} between the windows of memory_snapshot: {human_bytes(cause.per_batch)} a batch, '
            f'{human_bytes(cause.grown)} from batch {cause.begin} to {cause.end}{_kept(cause.kept_by)}.'
        )
    if isinstance(cause, RAN_OUT):
        return out_of_memory_sentence(cause, rank)
    if isinstance(cause, LeftWhole):
        modules = ', '.join(
            f'{name or "the model itself"} ({human_bytes(size)})' for name, size in cause.modules.items()
        )
        return (
            f'FSDP leaves modules whole on each rank: {modules}. With gradients and optimizer state, sharding them would '
            f'free about {human_bytes(cause.frees)} of each rank.'
        )
    if isinstance(cause, HostFull):
        return _host_full(cause)
    if isinstance(cause, CopiedByWorkers):
        return f'Host memory grows{rank}, but not without end: {_copied(cause.copied)}.'
    if isinstance(cause, HostLeft):
        return (
            f'Host memory leaks{rank}: {human_bytes(cause.left)} that {cause.line} has allocated in {cause.batches} batches '
            f'are not freed, {human_bytes(cause.per_batch)} a batch.'
        )
    growth = cause.suspect.growth
    kept = _kept(cause.kept_by, cause.line)
    more = f' It is the fastest of {cause.ranks} ranks that grow.' if cause.ranks > 1 else ''
    return f'Host memory grows{rank}, in {cause.suspect.name}, by {human_bytes(growth.per_batch)} a batch{kept}.{more}'


def on_rank(rank: int, report: RunReport) -> str:
    """`` on rank 3``, to append; ``''`` if there is one rank."""
    return f' on {report.labels.get(rank, f"rank {rank}")}' if len(report.ranks) > 1 else ''


def _slow(
    cause: Waiting | TimeTaken | Slowing | Collecting | Compiling | Straggler | SmallMicrobatches, rank: str
) -> str:
    share = f'{100 * cause.cost:.0f} % of the time{rank}'
    if isinstance(cause, Straggler):
        return _behind(cause)
    if isinstance(cause, Waiting):
        where = ', '.join(['the sampler'] * cause.sampler + [cause.line] * bool(cause.line))
        line = f', most in {where}' if where else ''
        return (
            f'Training waits for data for {100 * cause.cost:.0f} % of its time{rank}{line}: '
            f'{amount(cause.seconds, "seconds")} of a batch of {amount(cause.batch, "seconds")}.'
        )
    if isinstance(cause, TimeTaken) and cause.first:
        return (
            f'{_TAKERS[cause.phase]} {share}: the first batch of each epoch waits {amount(cause.first, "seconds")} for workers '
            f'to start, others wait {amount(cause.later, "seconds")}.'
        )
    if isinstance(cause, TimeTaken):
        line = f', most in {cause.line}' if cause.line else ''
        return f'{_TAKERS[cause.phase]} {share}{line}: {amount(cause.seconds, "seconds")} of a batch on average.'
    if isinstance(cause, Slowing):
        line = f', most in {cause.line}' if cause.line else ''
        return (
            f'Batches take longer and longer{rank}: the median is {amount(cause.first, "seconds")} in the first quarter of them '
            f'and {amount(cause.last, "seconds")} in the last; {_PHASES.get(cause.phase, cause.phase)} grows{line}.'
        )
    if isinstance(cause, Collecting):
        count = count_of(cause.collections, 'full collection')
        return f"Python's garbage collector takes {share}: {amount(cause.seconds, 'seconds')}, in {count}."
    if isinstance(cause, SmallMicrobatches):
        return (
            f'Microbatches are too small{rank}: each batch is split into {cause.microbatches} of '
            f'{count_of(max(round(cause.samples), 1), "sample")}, which take {amount(cause.seconds, "seconds")} each.'
        )
    again = cause.compiled
    return (
        f'torch.compile takes {share}: it compiled {again.function} {count_of(again.times, "more time")}, in '
        f'{amount(again.seconds, "seconds")}, the last because: {again.reason}.'
    )


def _behind(cause: Straggler) -> str:
    line = f', most in {cause.line}' if cause.line else ''
    why = ''
    if cause.size >= _LARGER:
        why = f' Its batches are {cause.size:.1f} times as large as theirs.'
    elif cause.collecting >= _EXPLAINS * (cause.seconds - cause.others):
        why = f" Of that, {amount(cause.collecting, 'seconds')} are Python's garbage collector's."
    phase = _PHASES.get(cause.phase, cause.phase)
    who, what = f'rank {cause.rank}', f'its {phase} takes'
    if len(cause.together) > 1:
        host = f', which are all of {cause.host}' if cause.host else ''
        who, what = f'ranks {rank_list(cause.together)}{host}', f'{phase} on rank {cause.rank} takes'
    return (
        f'The other ranks wait for {who}: {what} '
        f'{amount(cause.seconds, "seconds")} of each batch, theirs {amount(cause.others, "seconds")}{line}.{why}'
    )


def _kept(kept_by: str, line: str = '') -> str:
    """What keeps the memory that each batch adds, and the line that allocates it, as far as they are known."""
    if not kept_by and not line:
        return ''
    what = f'what {line} allocates' if line else 'what each batch adds'
    return f': {what} is kept{f" by {kept_by}" if kept_by else ""}'


def _host_full(cause: HostFull) -> str:
    text = (
        f'Rank {cause.rank} was killed when host memory was full: the job used {human_bytes(cause.used)} of the '
        f'{human_bytes(cause.limit)} at which it is killed'
    )
    if cause.copied is not None:
        return f'{text}: {_copied(cause.copied)}.'
    if cause.suspect is not None:
        by = human_bytes(cause.suspect.growth.per_batch)
        return f'{text}. It grows in {cause.suspect.name}, by {by} a batch{_kept(cause.kept_by)}.'
    processes = human_bytes(cause.processes)
    if cause.processes <= cause.used:
        text += f', {processes} of that by this rank and its children'
    else:
        text += f'. This rank and its children have {processes}, with what they share counted for each'
    if not cause.grew:
        return f'{text}. None of them grows steadily.'
    too_few = '. The run was too short to say whether it grew steadily' if cause.short else ''
    return f'{text}: {human_bytes(cause.more)} more than at first, in {cause.name}{too_few}.'


def _copied(copied: CopiedObjects) -> str:
    """What workers copy, in words."""
    each = (
        'the DataLoader worker copies' if copied.workers == 1 else f'each of {copied.workers} DataLoader workers copies'
    )
    if not copied.kept_by:
        return f'{each} Python objects of the training process as it reads them (copy-on-write), {human_bytes(copied.copied)} by now'
    whole = human_bytes(copied.objects)
    return (
        f"{each} the Python objects of {copied.kept_by}, as it reads them (copy-on-write). The workers' private memory grows "
        f'towards the size of the data set, {whole} a worker; {human_bytes(copied.copied)} are copied by now'
    )


def _leak(cause: DeviceLeak, rank: str, is_full: bool) -> str:
    line = cause.at[0] if cause.at else 'a line that was not recorded'
    if not cause.kept_by and len(cause.at) > 1:
        line += f', called from {cause.at[1]},'  # the line alone may be of a layer that many call
    begin = f'Memory ran out{rank} because of a leak' if is_full else f'Memory leaks{rank}'
    others = f' and {count_of(cause.places - 1, "other line")}' if cause.places > 1 else ''
    verb, keeper = 'allocate' if others else 'allocates', f' by {cause.kept_by};' if cause.kept_by else ','
    text = (
        f'{begin}: what {line}{others} {verb} is kept{keeper} {human_bytes(cause.per_batch)} more in each {cause.unit}, '
        f'{human_bytes(cause.total)} by now.'
    )
    return text if cause.left is None else f'{text} The device is full after some {cause.left:,} more.'
