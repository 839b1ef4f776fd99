"""What could be changed to lower the peak: each a trial of its own, none of them a guess."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from composer_memprof.plan.trial import Outcome, Trial


@dataclasses.dataclass(frozen=True)
class Change:
    """A change to the config.

    Attributes:
        name: what is done, in a few words.
        how: what to write where.
        cost: what it costs beside memory, in a few words; ``''`` if that is measured, or nothing.
        trial: to try it.
    """

    name: str
    how: str
    cost: str
    trial: Trial


def changes_of(config: Mapping[str, Any], base: Trial, outcome: Outcome) -> Iterator[Change]:
    """The changes that apply to a config, whose own trial had this outcome."""

    def overriding(name: str, *overrides: str, cost: str = '') -> Change:
        return Change(name, ' '.join(overrides), cost, replace(base, overrides=(*base.overrides, *overrides)))

    half = outcome.microbatch // 2
    if half:
        yield overriding(
            'half the microbatch', f'device_train_microbatch_size={half}', cost='more, smaller microbatches'
        )
    if outcome.blocks:
        how = f'apply_activation_checkpointing(model, check_fn=lambda module: type(module).__name__ == {outcome.blocks!r})'
        trial = replace(base, checkpointed=outcome.blocks, counts_flops=True)
        yield Change(f'checkpoint each {outcome.blocks}', how, '', trial)
    if config.get('precision') != 'amp_bf16':
        yield overriding('bfloat16', 'precision=amp_bf16', cost='less precision')
    optimizer = config.get('optimizer')
    if isinstance(optimizer, dict) and optimizer.get('name') in ('adamw', 'sgd') and not optimizer.get('fused'):
        yield overriding('fused optimizer', 'optimizer.fused=true')
        yield overriding('one parameter at a time', 'optimizer.foreach=false', cost='a slower optimizer step')
    if 'expandable_segments' not in base.allocator:
        setting = ','.join(filter(None, [base.allocator, 'expandable_segments:True']))
        how = f'PYTORCH_CUDA_ALLOC_CONF={setting}'
        yield Change('expandable segments', how, '', replace(base, allocator=setting))
    yield from _of_sharding(config, base, overriding)


def _of_sharding(config: Mapping[str, Any], base: Trial, overriding: Any) -> Iterator[Change]:
    if base.ranks == 1:
        return
    parallelism = config.get('parallelism_config') or {}
    if not parallelism:
        yield overriding(
            'shard with FSDP2', 'parallelism_config.fsdp2={}', cost='gathers the parameters of each module'
        )
    elif 'fsdp2' in parallelism:
        keeps = (parallelism['fsdp2'] or {}).get('reshard_after_forward', True) is False
        cost = 'gathers them again in backward' if keeps else 'fewer gathers'
        name = 'reshard after forward' if keeps else 'keep parameters gathered after forward'
        yield overriding(name, f'parallelism_config.fsdp2.reshard_after_forward={str(keeps).lower()}', cost=cost)
    if parallelism:
        trial = replace(base, ranks=2 * base.ranks)
        yield Change(f'{trial.ranks} ranks', f'--ranks {trial.ranks}', 'twice as many GPUs', trial)
