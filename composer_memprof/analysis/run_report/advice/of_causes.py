"""What ends each cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from composer_memprof.analysis.run import rank_list
from composer_memprof.analysis.run_report.advice import code
from composer_memprof.analysis.run_report.advice.kinds import Advice
from composer_memprof.analysis.run_report.advice.of_out_of_memory import against_running_out
from composer_memprof.analysis.run_report.causes.kinds import (
    WORKERS,
    Cause,
    Collecting,
    Compiling,
    CopiedByWorkers,
    DeviceLeak,
    HostFull,
    HostLeak,
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
from composer_memprof.analysis.run_report.readers import LoaderSettings
from composer_memprof.messages import count_of, human_bytes
from composer_memprof.recorders.host.summary import CopiedObjects
from composer_memprof.recorders.step_times.lines import ALGORITHMS, CALLBACKS, LOOP, LOSS, METRICS, STEP
from composer_memprof.recorders.step_times.summary import DATA, REST
from composer_memprof.vocabulary import CHECKPOINT, EVAL, IN_CYCLE, WITH_GRAPH

#: As in the sentence.
_LARGER, _EXPLAINS = 1.2, 0.5
_LESS_OF = {
    EVAL: 'Evaluate less often (eval_interval), or on fewer batches (eval_subset_num_batches).',
    CHECKPOINT: 'Save checkpoints less often (save_interval).',
    REST: 'Do less in callbacks, loggers and metrics, or not in each batch.',
    CALLBACKS: 'Do less in callbacks, or not in each batch.',
    ALGORITHMS: 'Do less in the algorithm, or apply it in fewer batches (its match), or to the data in the data set.',
    METRICS: 'Compute fewer metrics of the training (get_metrics with is_train=True), or only in evaluation.',
    LOSS: 'Compute the loss with a few operations on whole tensors: no loop over samples, no .item() in it.',
    STEP: 'Update whole parameters at once, without a Python loop over their parts, or use an optimizer of torch.',
    LOOP: 'Do less in the loop between forward, backward and the update, or not in each batch.',
    WORKERS: 'Keep the workers from epoch to epoch: DataLoader(…, persistent_workers=True).',
}
_CODE = {EVAL: code.RARE_EVALUATION, CHECKPOINT: code.RARE_CHECKPOINTS, WORKERS: code.PERSISTENT_WORKERS}


def against(cause: Cause, found: Sequence[Advice], *, copies: bool = False) -> Advice:
    """What ends a cause.

    Args:
        cause (Cause): the cause.
        found (Sequence[Advice]): from the figures alone.
        copies (bool): True if each DataLoader worker copies the data set, so that more of them take more memory.
    """
    if isinstance(cause, RAN_OUT):
        return against_running_out(cause, found)
    if isinstance(cause, Waiting):
        if cause.sampler:
            return Advice(
                'Let the sampler draw the indices of an epoch at once, in place of one by one.',
                f'It runs in the training process, whatever num_workers is. {_why_waiting(cause)}',
                code=code.DRAWN_AT_ONCE,
            )
        if copies:
            return Advice('Do less work for each sample.', f'{_why_waiting(cause)} More workers would copy more.')
        return Advice(_faster_loading(cause.loader), _why_waiting(cause), code=_workers(cause.loader))
    if isinstance(cause, SmallMicrobatches):
        return Advice(
            "Raise device_train_microbatch_size, or set it to 'auto': the largest that fits.",
            f'A batch takes {cause.microbatches} forward and backward passes of {1000 * cause.seconds:.1f} ms, each of which '
            'launches every kernel anew.',
            code=code.AUTO_MICROBATCH,
        )
    if isinstance(cause, Straggler):
        return _catch_up(cause)
    if isinstance(cause, LeftWhole):
        names = ', '.join(name or 'the model itself' for name in cause.modules)
        return Advice(
            f'Shard {names} with FSDP too: in Composer, let fsdp_wrap_fn return True for it, or set module._fsdp_wrap = True; '
            'in your own code, call fully_shard on it, or on the model around it.',
            f'{human_bytes(sum(cause.modules.values()))} of parameters are on each rank, with as much for gradients and each '
            'optimizer state.',
            frees=cause.frees,
        )
    if isinstance(cause, TimeTaken):
        return Advice(
            _LESS_OF[cause.phase],
            f'On rank {cause.rank} it takes {1000 * cause.seconds:,.0f} ms of a batch on average'
            f'{f", most in {cause.line}" if cause.line else ""}.',
            code=_CODE.get(cause.phase, ''),
        )
    if isinstance(cause, Slowing):
        where = cause.line or f'what runs in {cause.phase!r}'
        return Advice(
            f'Look at {where} for work that grows with each batch: over a list that gets longer, or hooks that add up.',
            f'A batch takes {1000 * (cause.last - cause.first):,.0f} ms more by the end, on rank {cause.rank}.',
        )
    if isinstance(cause, Collecting):
        return Advice(
            'Call gc.freeze() once the training has warmed up; or gc.disable(), and gc.collect() every some hundred batches.',
            f'{count_of(cause.collections, "collection")} visited every object of the process on rank {cause.rank}. What '
            'is frozen is not visited.',
            code=code.FREEZE,
        )
    if isinstance(cause, Compiling):
        return Advice(
            'Give the function inputs of few shapes: pad to fixed lengths, or torch.compile(…, dynamic=True).',
            f'The last time because: {cause.compiled.reason}',
            code=code.DYNAMIC,
        )
    if isinstance(cause, DeviceLeak):
        return _against_leak(cause)
    if isinstance(cause, LeakBetweenWindows):
        window = "A longer window names the line that allocates it: MemorySnapshot(interval='20ba')."
        if not cause.kept_by:
            return Advice(
                'Record a longer window, which names the line and what keeps it.', window, code=code.LONG_WINDOW
            )
        how = 'a number, the newest few' if cause.on_host else 'a number, the newest few, a copy on the host'
        return Advice(
            f'Stop keeping what batches put into {cause.kept_by}.',
            f'Keep {how}, or write the rest to a file. {window}',
            frees=cause.grown,
            code=code.NEWEST if cause.on_host else code.DETACHED,
        )
    if isinstance(cause, HostLeft):
        return Advice(
            f'Stop keeping what {cause.line} allocates from batch to batch.',
            f'Each batch leaves {human_bytes(cause.per_batch)} of it on rank {cause.rank}, in the {cause.batches} batches of '
            "the window. The page of memray's leaks shows what called it.",
            code=code.NEWEST,
        )
    if isinstance(cause, CopiedByWorkers):
        return _without_copies(cause.copied)
    if isinstance(cause, HostFull) and cause.copied is not None:
        return _without_copies(cause.copied)
    return _less_on_the_host(cause)


def _without_copies(copied: CopiedObjects) -> Advice:
    name, _, kind = copied.kept_by.partition(', ')
    kind = f'{kind.partition(" of ")[0]} of ' if kind else ''
    in_all = copied.workers * max(copied.objects, copied.copied)
    return Advice(
        f'Keep the samples of {name or "the data set"} in a numpy array, a torch tensor or a pyarrow table, not in {kind}Python objects.',
        'Each look at a Python object writes its reference count, and the system then copies its page of memory for the worker. '
        f'The copies end at about {human_bytes(in_all)} for {count_of(copied.workers, "worker")}; with more workers there are '
        'more.',
        frees=in_all,
        code=code.IN_ARRAYS,
    )


def _less_on_the_host(cause: HostLeak | HostFull) -> Advice:
    line = cause.line if isinstance(cause, HostLeak) else ''
    if cause.kept_by or line:
        if line:
            what = f'what {line} allocates{f" in {cause.kept_by}" if cause.kept_by else ""}'
        else:
            what = f'what batches put into {cause.kept_by}'
        more = '' if line else ' Memray names the lines that allocate it, in a window of many batches.'
        return Advice(
            f'Stop keeping {what}.',
            f'Keep a number, the newest few, or write the rest to a file.{more}',
            code=code.NEWEST,
        )
    if cause.suspect is None:
        assert isinstance(cause, HostFull)
        if cause.grew and cause.phase == CHECKPOINT:
            return Advice(
                'Save checkpoints with less host memory: shard them, or copy and write one tensor at a time.',
                f'Saving took {human_bytes(cause.more)} of host memory on rank {cause.rank}.',
                code=code.SHARDED_CHECKPOINTS,
            )
        if cause.grew and cause.short:
            return Advice(
                f'Look in {cause.name}, on rank {cause.rank}, for what is kept from batch to batch.',
                f'It took {human_bytes(cause.more)} more since the first sample. HostRSS(interval=0.1) samples more often.',
            )
        return Advice(
            'Use fewer DataLoader workers or a smaller prefetch_factor, or give the job more memory.',
            f'No process grows steadily on rank {cause.rank}.',
        )
    return Advice(
        f'Look in {cause.suspect.name}, on rank {cause.rank}, for objects that are kept from batch to batch.',
        f'Its host memory grows by {human_bytes(cause.suspect.growth.per_batch)} a batch. Small objects take memory that '
        'another phase has freed, so they may be kept in another phase. Memray names the lines that allocate.',
        code=code.WITH_MEMRAY,
    )


def _catch_up(cause: Straggler) -> Advice:
    why = f'Rank {cause.rank} takes {1000 * (cause.seconds - cause.others):,.0f} ms longer for each batch; all others wait.'
    if cause.size >= _LARGER:
        return Advice('Give all ranks batches of one size: sort or pack samples by length before they are split.', why)
    if cause.collecting >= _EXPLAINS * (cause.seconds - cause.others):
        return Advice(
            'Call gc.disable(), and gc.collect() after the same batches on all ranks.', why, code=code.COLLECT_TOGETHER
        )
    if cause.phase == DATA:
        return Advice(_faster_loading(cause.loader), why, code=_workers(cause.loader))
    if cause.host and len(cause.together) > 1:
        return Advice(
            f'Look at {cause.host}: whether it is slower than the other machines (clocks, temperature, other processes).',
            f'Its ranks, {rank_list(cause.together)}, all take longer. {why}',
        )
    where = f'at {cause.line}' if cause.line else 'at its machine'
    return Advice(
        f'Look {where} on rank {cause.rank}: whether it does more than the others, or its machine is slower (clocks, '
        'temperature, other processes).',
        why,
    )


def _against_leak(cause: DeviceLeak) -> Advice:
    keeper = f' in {cause.kept_by}' if cause.kept_by else ''
    what, how = f'Stop keeping what {_line(cause.at)} allocates{keeper}.', ''
    if cause.kept_by.startswith(IN_CYCLE):
        name = cause.kept_by.removeprefix(IN_CYCLE)
        what = f'Break the reference cycle of {name}, or call gc.collect() now and then.'
        how = 'What is in a cycle is freed by a garbage collection alone.'
    elif cause.kept_by.endswith(WITH_GRAPH):
        how = 'Keep x.detach(), or loss.item() of a number: a tensor with its graph keeps all activations behind it.'
    elif cause.on_host:
        how = 'Of a value that is kept, keep a number (loss.item()), or only the newest few (collections.deque(maxlen=…)).'
    else:
        how = 'Of a value that is kept, keep a number (loss.item()) or a copy on the host (x.detach().cpu()).'
    why = f'Each {cause.unit} leaves {human_bytes(cause.per_batch)} of it, {human_bytes(cause.total)} by now. {how}'
    return Advice(what, why, frees=cause.total, code=_to_keep_less(cause))


def _to_keep_less(cause: DeviceLeak) -> str:
    if cause.kept_by.startswith(IN_CYCLE):
        return code.COLLECT
    if cause.kept_by.endswith(WITH_GRAPH):
        return code.WITHOUT_GRAPH
    return code.NEWEST if cause.on_host else code.DETACHED


def _faster_loading(loader: Optional[LoaderSettings]) -> str:
    if loader is None:
        return 'Load data in processes of their own, ahead of the training.'
    if not loader.num_workers:
        return 'Give the DataLoader workers, such as num_workers=4: with 0 the training itself loads each batch.'
    ahead = f', or its prefetch_factor ({loader.prefetch_factor})' if loader.prefetch_factor is not None else ''
    return f"Raise the DataLoader's num_workers ({loader.num_workers}){ahead}, or do less work for each sample."


def _workers(loader: Optional[LoaderSettings]) -> str:
    """Twice as many workers, or four if there are none."""
    return code.WORKERS.format(2 * loader.num_workers if loader is not None and loader.num_workers else 4)


def _why_waiting(cause: Waiting) -> str:
    line = f' Most of it is in {cause.line}.' if cause.line else ''
    return f'Rank {cause.rank} waits for data for {100 * cause.cost:.0f} % of its time.{line}'


def _line(at: Sequence[str]) -> str:
    return at[0] if at else 'a line that was not recorded'
