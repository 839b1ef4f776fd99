"""What could be changed to lower the peak: each a trial of its own, none of them a guess."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any, Optional

from composer_memprof.plans.trial import CHECKPOINT_MARK, UNIT_MARK, Outcome, Trial
from composer_memprof.vocabulary import CHECKPOINT_BLOCKS, DROP_OUTPUTS, SHARD


class Price(IntEnum):
    """What a change costs beside memory, the cheapest first."""

    NOTHING = 0
    OPTIMIZER_TIME = 1
    MORE_GATHERS = 2
    SMALL_KERNELS = 3
    RECOMPUTATION = 4
    PRECISION = 5
    COPIES_TO_HOST = 6
    COMMUNICATION = 7
    MORE_GPUS = 8


@dataclasses.dataclass(frozen=True)
class Change:
    """A change to a trial.

    Attributes:
        name: what is done, in a few words.
        how: what to write where.
        cost: what it costs beside memory, in a few words; ``''`` if that is measured, or nothing.
        price: the order in which a combination takes it; None if none takes it.
        apply: changes a trial.
        advised_as: what a report on a run calls it, if it advises it.
    """

    name: str
    how: str
    cost: str
    price: Optional[Price]
    apply: Callable[[Trial], Trial]
    advised_as: str = ''


def overriding(
    name: str, *overrides: str, price: Optional[Price], cost: str = '', mark: str = '', on: str = ''
) -> Change:
    """A change of the config.

    Args:
        mark: an attribute to set on each block too, whose class is ``on``.
    """
    how = ' and '.join([*overrides, *([f'{mark} = True on each {on}'] if mark else [])])

    def apply(trial: Trial) -> Trial:
        marked = (*trial.marked, mark) if mark else trial.marked
        return replace(trial, overrides=(*trial.overrides, *overrides), marked=marked)

    return Change(name, how, cost, price, apply)


def changes_of(config: Mapping[str, Any], base: Trial, outcome: Outcome, compute_capability: int) -> Iterator[Change]:
    """The changes that apply to a config.

    Args:
        outcome: of its own trial, with FLOPs counted.
        compute_capability: its major part.
    """
    half = outcome.microbatch // 2
    if half:
        yield of_microbatch('half the microbatch', half)
    if outcome.blocks and not outcome.recomputes:
        yield replace(_checkpointing(config, base, outcome), advised_as=CHECKPOINT_BLOCKS)
    yield Change(
        'return less from forward',
        'return the loss from forward, and not the logits',
        '',
        None,  # it changes the model's code, where a combination changes settings
        lambda trial: replace(trial, drops_outputs=True),
        DROP_OUTPUTS,
    )
    if compute_capability >= 8 and outcome.precision in ('fp32', 'amp_fp16'):
        yield overriding('bfloat16', 'precision=amp_bf16', price=Price.PRECISION, cost='less precision')
    elif outcome.precision == 'fp32':
        yield overriding('float16', 'precision=amp_fp16', price=Price.PRECISION, cost='less precision')
    optimizer = config.get('optimizer')
    if isinstance(optimizer, dict) and optimizer.get('name') in ('adamw', 'sgd') and not optimizer.get('fused'):
        yield overriding('fused optimizer', 'optimizer.fused=true', price=Price.NOTHING)
        if optimizer.get('foreach') is not False:
            yield overriding(
                'one parameter at a time',
                'optimizer.foreach=false',
                price=Price.OPTIMIZER_TIME,
                cost='a slower optimizer step',
            )
    if 'expandable_segments' not in base.allocator:
        setting = ','.join(filter(None, [base.allocator, 'expandable_segments:True']))
        how = f'PYTORCH_CUDA_ALLOC_CONF={setting}'
        yield Change('expandable segments', how, '', Price.NOTHING, lambda trial: replace(trial, allocator=setting))
    if base.ranks > 1:
        yield from _of_sharding(config, base, outcome)


def of_microbatch(name: str, samples: int) -> Change:
    """The change to microbatches of this size."""
    return overriding(
        name,
        f'device_train_microbatch_size={samples}',
        price=Price.SMALL_KERNELS,
        cost='more, smaller microbatches',
    )


def _checkpointing(config: Mapping[str, Any], base: Trial, outcome: Outcome) -> Change:
    blocks = outcome.blocks
    name = f'checkpoint each {blocks}'
    key = sharding_key(config)
    if key and base.ranks > 1:
        mark = '' if outcome.says_what_to_checkpoint else CHECKPOINT_MARK
        change = overriding(name, *checkpointing_overrides(key), price=Price.RECOMPUTATION, mark=mark, on=blocks)
        return replace(change, apply=lambda trial: replace(change.apply(trial), counts_flops=True))
    how = f'apply_activation_checkpointing(model, check_fn=lambda module: type(module).__name__ == {blocks!r})'
    return Change(
        name, how, '', Price.RECOMPUTATION, lambda trial: replace(trial, checkpointed=blocks, counts_flops=True)
    )


def sharding_key(config: Mapping[str, Any]) -> str:
    """Where the config sets FSDP up; ``''`` if it does not."""
    parallelism = config.get('parallelism_config') or {}
    return next((f'parallelism_config.{name}' for name in ('fsdp2', 'fsdp') if name in parallelism), '')


def sharding_settings(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What the config sets at :func:`sharding_key`."""
    return config['parallelism_config'][key.rpartition('.')[2]] or {}


def checkpointing_overrides(key: str) -> list[str]:
    """The settings of FSDP that checkpoint the modules that are meant."""
    settings = [f'{key}.activation_checkpointing=true']
    if not is_fsdp2(key):  # torch advises against reentrant ones, which need an FSDP unit each
        settings.append(f'{key}.activation_checkpointing_reentrant=false')
    return settings


def is_fsdp2(key: str) -> bool:
    """Whether the settings at this key of a config are FSDP2's."""
    return key.endswith('fsdp2') or os.environ.get('FSDP_VERSION', '1') == '2'


def _of_sharding(config: Mapping[str, Any], base: Trial, outcome: Outcome) -> Iterator[Change]:
    key = sharding_key(config)
    if not key:
        if not config.get('parallelism_config'):
            change = overriding('shard with FSDP2', 'parallelism_config.fsdp2={}', price=Price.COMMUNICATION)
            yield replace(change, advised_as=SHARD)
        return
    settings = sharding_settings(config, key)
    yield _reshard(key, settings)
    if outcome.one_unit and outcome.blocks:
        yield overriding(
            f'an FSDP unit for each {outcome.blocks}',
            price=Price.MORE_GATHERS,
            cost='more, smaller gathers',
            mark=UNIT_MARK,
            on=outcome.blocks,
        )
    if outcome.blocks and not settings.get('activation_cpu_offload'):
        yield overriding(
            f'offload the activations of each {outcome.blocks}',
            f'{key}.activation_cpu_offload=true',
            price=Price.COPIES_TO_HOST,
            cost='copies to the host and back',
            mark='' if outcome.says_what_to_checkpoint else CHECKPOINT_MARK,
            on=outcome.blocks,
        )
    nodes = base.nodes
    if nodes > 1 and not is_fsdp2(key) and not settings.get('data_parallel_replicate_degree'):
        yield overriding(f'HSDP, {nodes} replicas', f'{key}.data_parallel_replicate_degree={nodes}', price=None)
    ranks = 2 * base.ranks
    on_node = base.ranks_per_node or (None if ranks <= 8 or ranks % 8 == 0 else base.ranks)
    yield Change(
        f'{ranks} ranks',
        f'--ranks {ranks}',
        'twice as many GPUs',
        Price.MORE_GPUS,
        lambda trial: replace(trial, ranks=ranks, ranks_per_node=on_node),
    )


def _reshard(key: str, settings: Mapping[str, Any]) -> Change:
    if is_fsdp2(key):
        keeps = settings.get('reshard_after_forward', True) is False
        setting = f'{key}.reshard_after_forward={str(keeps).lower()}'
    else:
        keeps = str(settings.get('sharding_strategy', 'FULL_SHARD')).upper() == 'SHARD_GRAD_OP'
        setting = f'{key}.sharding_strategy={"FULL_SHARD" if keeps else "SHARD_GRAD_OP"}'
    name = 'reshard after forward' if keeps else 'keep parameters gathered after forward'
    return overriding(name, setting, price=Price.MORE_GATHERS if keeps else None)


def not_tried(config: Mapping[str, Any], base: Trial) -> list[str]:
    """The changes that Composer does not take, with the reason, one line each."""
    key = sharding_key(config)
    if base.ranks == 1 or not key:
        return []
    offered = 'has no setting for it' if is_fsdp2(key) else 'refuses cpu_offload'
    lines = [f'offload of the parameters to the CPU: Composer {offered}']
    if base.nodes > 1 and is_fsdp2(key):
        lines.append('HSDP: with FSDP2, Composer shards over all ranks; its FSDP1 takes data_parallel_replicate_degree')
    return lines
