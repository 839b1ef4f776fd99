"""The settings that a search for the fastest config goes through, each with its choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from composer_memprof.plans.changes import checkpointing_overrides, is_fsdp2, sharding_key, sharding_settings
from composer_memprof.plans.trial import CHECKPOINT_MARK, UNIT_MARK, Outcome, Trial

_Apply = Callable[[Trial], Trial]


@dataclasses.dataclass(frozen=True)
class Choice:
    """One value of a setting.

    Attributes:
        name: in a few words; ``''`` for the value that the config has without being told.
        apply: sets it in a trial.
        in_code: what to write into the model's code, in a sentence; ``''`` if a config says it all.
    """

    name: str
    apply: _Apply
    in_code: str = ''


@dataclasses.dataclass(frozen=True)
class Setting:
    """What can be chosen, and how the choices compare.

    Attributes:
        choices: each one saves memory against those before it, and is never faster than they are. Without ``ordered``
            nothing is known of how they compare.
        price: how much time a choice later in the list is expected to take. It decides only what is tried first.
    """

    choices: tuple[Choice, ...]
    price: int
    ordered: bool = True


def settings_of(config: Mapping[str, Any], base: Trial, outcome: Outcome) -> list[Setting]:
    """The settings of a config that can be chosen.

    Args:
        base: the config's own trial.
        outcome: of it, with FLOPs counted.
    """
    key = sharding_key(config) if base.ranks > 1 else ''
    settings = sharding_settings(config, key) if key else {}
    found = [_resharding(key, settings)] if key else []
    if outcome.blocks and (settings.get('activation_checkpointing') or not outcome.recomputes):
        found.append(_checkpointing(key, outcome))
    if outcome.blocks and key:
        found.append(_offload(key, outcome))
    if outcome.one_unit and outcome.blocks:
        found.append(_units(outcome.blocks))
    return [setting for setting in found if len(setting.choices) > 1]


def _set(*overrides: str, **values: Any) -> _Apply:
    return lambda trial: replace(trial, overrides=(*trial.overrides, *overrides), **values)


def _resharding(key: str, settings: Mapping[str, Any]) -> Setting:
    if is_fsdp2(key):
        keeps, reshards = (f'{key}.reshard_after_forward={each}' for each in ('false', 'true'))
    else:
        keeps, reshards = (f'{key}.sharding_strategy={each}' for each in ('SHARD_GRAD_OP', 'FULL_SHARD'))
        if str(settings.get('sharding_strategy', 'FULL_SHARD')).upper() not in ('FULL_SHARD', 'SHARD_GRAD_OP'):
            return Setting((), 0)  # hybrid ones have more to them
    return Setting((Choice('parameters kept gathered', _set(keeps)), Choice('', _set(reshards))), price=1)


def _checkpointing(key: str, outcome: Outcome) -> Setting:
    """None of the blocks, every second one, each."""
    blocks = outcome.blocks
    if not key:
        choices = [Choice('', lambda trial: trial)]
        for name, every in ((f'every second {blocks} checkpointed', 2), (f'each {blocks} checkpointed', 1)):
            which = 'apply_activation_checkpointing(model, check_fn=…) to '
            which += f'{"every second" if every == 2 else "each"} {blocks}'
            choices.append(Choice(name, _checkpointed(blocks, every), which))
        return Setting(tuple(choices), price=2)
    settings = checkpointing_overrides(key)
    return Setting(
        (
            Choice('', _set(f'{key}.activation_checkpointing=false')),
            Choice(
                f'every second {blocks} checkpointed',
                _marked(_set(*settings, every=2)),
                f'{CHECKPOINT_MARK} = True on every second {blocks}, False on the others',
            ),
            Choice(f'each {blocks} checkpointed', *_on_each_block(_set(*settings), outcome)),
        ),
        price=2,
    )


def _checkpointed(blocks: str, every: int) -> _Apply:
    return _set(checkpointed=blocks, every=every)


def _offload(key: str, outcome: Outcome) -> Setting:
    """Composer offloads the activations of the modules that it would checkpoint."""
    settings = [f'{key}.activation_cpu_offload={each}' for each in ('false', 'true')]
    offloads = Choice('activations offloaded', *_on_each_block(_set(settings[1]), outcome))
    return Setting((Choice('', _set(settings[0])), offloads), price=4)


def _on_each_block(apply: _Apply, outcome: Outcome) -> tuple[_Apply, str]:
    """A choice's function and its code, for a model that may not tell Composer which modules are meant."""
    if outcome.says_what_to_checkpoint:
        return apply, ''
    return _marked(apply), f'{CHECKPOINT_MARK} = True on each {outcome.blocks}'


def _marked(apply: _Apply, mark: str = CHECKPOINT_MARK) -> _Apply:
    def and_mark(trial: Trial) -> Trial:
        applied = apply(trial)
        return replace(applied, marked=tuple(dict.fromkeys((*applied.marked, mark))))

    return and_mark


def _units(blocks: str) -> Setting:
    own = Choice(f'an FSDP unit for each {blocks}', _marked(_set(), UNIT_MARK), f'{UNIT_MARK} = True on each {blocks}')
    return Setting((own, Choice('', lambda trial: trial)), price=1, ordered=False)


def microbatches(samples: int) -> Iterator[int]:
    """The sizes of a microbatch that split a batch into different numbers of microbatches, the smallest first.

    >>> list(microbatches(12))
    [1, 2, 3, 4, 6, 12]
    >>> list(microbatches(7))
    [1, 2, 3, 4, 7]
    """
    return iter(sorted({-(-samples // count) for count in range(1, samples + 1)}))
