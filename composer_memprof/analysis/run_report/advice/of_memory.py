"""What to change so that a run takes less memory, each with the bytes that it would free, and what it costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport
from composer_memprof.analysis.module_memory import ModuleMemorySummary
from composer_memprof.analysis.module_names import layer_name
from composer_memprof.analysis.run_report.advice.code import CHECKPOINTED, SHARDED
from composer_memprof.analysis.run_report.advice.kinds import Advice, in_order
from composer_memprof.analysis.run_report.advice.of_causes import against
from composer_memprof.analysis.run_report.advice.of_failures import against_failures
from composer_memprof.analysis.run_report.causes.device_memory import memory_of
from composer_memprof.analysis.run_report.causes.kinds import Cause, CopiedByWorkers
from composer_memprof.analysis.run_report.failures import Failure
from composer_memprof.analysis.run_report.readers import Checkpoint, FlopsFile, SavedTensorsFile
from composer_memprof.messages import count_of, human_bytes
from composer_memprof.vocabulary import (
    ACTIVATION,
    CHECKPOINT_BLOCKS,
    DROP_OUTPUTS,
    EVAL,
    FORWARD,
    GRADIENT,
    OPTIMIZER,
    SHARD,
)

#: Less than this share of the peak is not worth a change.
_SHARE = 0.02
#: Idle memory below this is what the allocator always has.
_LEAST_IDLE = 64 << 20
_EXPANDABLE = 'expandable_segments:True'
#: What an expandable segment grows by, in bytes, for large blocks.
_PAGE = 20 << 20
#: Nor is less than this share of the memory that the device has, or the process where the device is the host.
_LEAST_FREED = 0.01
#: From this share of the device's memory on, changes that make room are offered though nothing has failed.
_CLOSE = 0.8
#: The rule of outputs that Composer's state holds; see analysis.memory.categories.
_OUTPUTS_KEPT = 'allocated in forward of the last batch, not freed'
_UNSHARDED = ('Parameter', 'Gradient', 'OptState')


def advice(
    lead: Optional[SnapshotReport],
    causes: Sequence[Cause],
    contents: Mapping[str, Mapping[int, Any]],
    ranks: Sequence[int],
    failures: Sequence[Failure] = (),
    killed: Sequence[int] = (),
) -> list[Advice]:
    """What to change: first what ends a failure, then a cause, the costliest first, then what frees most.

    Args:
        lead (SnapshotReport, optional): of the snapshot that tells most.
        causes (Sequence[Cause]): that were found, the costliest first.
        contents (Mapping): the newest content by callback and rank, as the readers return it.
        ranks (Sequence[int]): all ranks of the run.
        failures (Sequence[Failure]): of its last attempt, the first one first.
        killed (Sequence[int]): the ranks of it that wrote no end.
    """
    found: list[Advice] = []
    device = None if lead is None else lead.largest_device
    if lead is not None and device is not None:
        found += _of_allocator(device, lead.settings)
        found += _of_peak(device)
        found += _of_recording(lead)
    # A peak in the optimizer has no activations, and an evaluation has no backward pass.
    if device is None or not device.peak.phase.startswith((OPTIMIZER, EVAL)):
        by_module = list(_checkpointing(contents))
        found += by_module
        if device is not None and not by_module:
            found += _repeated(device)
    found += _sharding(contents, ranks)
    least = _LEAST_FREED * memory_of(device) if device is not None else 0
    found = [each for each in found if each.frees is None or each.frees >= least]
    offered = [] if device is not None and not failures and not killed and _has_room(device) else found
    copies = any(isinstance(cause, CopiedByWorkers) for cause in causes)
    first = [*against_failures(failures, killed), *(against(cause, found, copies=copies) for cause in causes)]
    others = [each for each in found if each not in first and (each in offered or each.frees is None)]
    return in_order([*(replace(each, ends_cause=True) for each in first), *others])


def _has_room(device: DeviceReport) -> bool:
    """True if the device never came close to the memory that it has: nothing has to make room."""
    return device.memory is not None and max(device.reserved_peak or 0, device.peak.bytes) < _CLOSE * device.memory


def _of_allocator(device: DeviceReport, settings: Mapping[str, str]) -> Iterator[Advice]:
    lost = device.fragmentation
    if lost is None or device.reserved_peak is None or settings.get('expandable_segments') == 'True':
        return
    # Expandable segments map pages as blocks need them, so that at most a page of each pool is idle.
    needed = -(-device.active_peak // _PAGE) * _PAGE + len(device.pools) * _PAGE
    frees = min(device.reserved_peak - needed, lost.idle)
    if frees < max(_LEAST_IDLE, _SHARE * device.reserved_peak):
        return
    hole = '' if lost.largest_hole is None else f' The largest hole has {human_bytes(lost.largest_hole)}.'
    yield Advice(
        f'Set PYTORCH_CUDA_ALLOC_CONF={_EXPANDABLE} before the training starts.',
        f'{human_bytes(device.reserved_peak)} were reserved where at most {human_bytes(device.active_peak)} were in '
        f'use; at the peak {human_bytes(lost.idle)} lay idle.{hole}',
        frees=frees,
        reserved=True,
        setting=','.join([*_other_settings(settings), _EXPANDABLE]),
        code=f'export PYTORCH_CUDA_ALLOC_CONF={",".join([*_other_settings(settings), _EXPANDABLE])}',
    )


def _other_settings(settings: Mapping[str, str]) -> list[str]:
    """What the user has set beside expandable segments."""
    given = settings.get('PYTORCH_CUDA_ALLOC_CONF', '').split(',')
    return [each for each in given if each.strip() and not each.strip().startswith('expandable_segments')]


def _of_peak(device: DeviceReport) -> Iterator[Advice]:
    peak = device.peak
    least = _SHARE * peak.bytes
    for share in peak.categories:
        kept = sum(rule.bytes for rule in share.rules if rule.rule == _OUTPUTS_KEPT)
        # In a batch that did not end, they may be anything that backward needs.
        if share.category == ACTIVATION and kept >= least and device.growth.batches and device.at_failure is None:
            yield Advice(
                'Return less from forward, such as the loss in place of the logits.',
                f'{human_bytes(kept)} of a batch are kept until the next forward returns; Composer keeps its outputs in '
                'state.outputs.',
                frees=kept,
                change=DROP_OUTPUTS,
            )
        if share.category == GRADIENT and peak.phase == FORWARD and share.bytes >= least:
            yield Advice(
                'Let gradients be freed before forward: optimizer.zero_grad(set_to_none=True).',
                f'{human_bytes(share.bytes)} of gradients are allocated at the peak, which is in forward.',
                frees=share.bytes,
            )


def _of_recording(lead: SnapshotReport) -> Iterator[Advice]:
    for note in lead.notes:
        if 'max_entries' in note:
            yield Advice('Record with a larger max_entries.', note)


def _checkpointing(contents: Mapping[str, Mapping[int, Any]]) -> Iterator[Advice]:
    files: Mapping[int, SavedTensorsFile] = contents.get('saved_tensors_hook', {})
    if not files:
        return
    rank = max(files, key=lambda rank: files[rank].total_bytes)
    file = files[rank]
    layers: defaultdict[str, list[Checkpoint]] = defaultdict(list)
    for checkpoint in file.checkpoints:
        layers[layer_name(checkpoint.name)].append(checkpoint)
    repeated = {name: blocks for name, blocks in layers.items() if len(blocks) > 1}
    if not repeated:
        return
    name, blocks = max(repeated.items(), key=lambda item: _freed(item[1]))
    # The file sums over the microbatches of a batch, which are not there at once.
    at_once = min(file.peak_bytes / file.total_bytes, 1.0) if file.total_bytes else 1.0
    frees = int(_freed(blocks) * at_once)
    if frees < _SHARE * file.peak_bytes:
        return
    yield Advice(
        f'Checkpoint the activations of {name} ({count_of(len(blocks), blocks[0].type)}).',
        f'Of {human_bytes(file.peak_bytes)} that autograd holds at once on rank {rank}, '
        f'{human_bytes(at_once * sum(block.frees_bytes for block in blocks))} are saved inside of them.',
        frees=frees,
        costs=_cost(blocks, contents.get('flops', {}).get(rank)),
        change=CHECKPOINT_BLOCKS,
        code=CHECKPOINTED,
    )


def _freed(blocks: Sequence[Checkpoint]) -> int:
    """While a block is computed again in backward, its activations are there once more."""
    return sum(block.frees_bytes for block in blocks) - max(block.frees_bytes for block in blocks)


def _repeated(device: DeviceReport) -> Iterator[Advice]:
    call = device.repeated
    if call is not None and call.frees >= _SHARE * device.peak.bytes:
        yield Advice(
            f'Checkpoint the activations of {call.name}.',
            f'It ran {call.calls} times, and {human_bytes(call.bytes)} that were allocated inside are kept for backward.',
            frees=call.frees,
            costs='its forward is computed again in backward',
            change=CHECKPOINT_BLOCKS,
            code=CHECKPOINTED,
        )


def _cost(blocks: Sequence[Checkpoint], flops: Optional[FlopsFile]) -> str:
    names = {block.name for block in blocks}
    again = sum(module.forward_flops for module in (flops.modules or []) if module.name in names) if flops else 0
    parts = []
    if flops is not None and again and flops.batch_flops:
        parts.append(f'{again / 1e9:,.1f} GFLOP more a batch ({100 * again / flops.batch_flops:.0f} %)')
    times = [block.recompute_ms for block in blocks if block.recompute_ms is not None]
    if times:
        parts.append(f'their forward took {sum(times):,.0f} ms')
    return '; '.join(parts)


def _sharding(contents: Mapping[str, Mapping[int, Any]], ranks: Sequence[int]) -> Iterator[Advice]:
    files: Mapping[int, ModuleMemorySummary] = contents.get('fsdp_mem_tracker', {})
    if len(ranks) < 2 or list(ranks) != list(range(len(ranks))):  # only some of the ranks were recorded
        return
    peaks = [sizes for file in files.values() for sizes in file.peak.values()]
    largest = max(peaks, key=lambda sizes: sizes.get('Total', 0), default={})
    if any('Sharded' in name or 'Unsharded' in name for name in largest):
        return  # it is sharded already
    held = sum(largest.get(name, 0) for name in _UNSHARDED)
    frees = held - held // len(ranks)
    if frees > _SHARE * largest.get('Total', 0):
        yield Advice(
            f'Shard the model over the {len(ranks)} ranks with FSDP.',
            f'Each rank holds {human_bytes(held)} of parameters, gradients and optimizer state at its peak.',
            frees=frees,
            costs='each rank gathers the parameters in forward and backward',
            change=SHARD,
            code=SHARDED,
        )
