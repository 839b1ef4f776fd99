"""``composer-memprof plan --fastest``: the fastest config that fits, searched by trials."""

from __future__ import annotations

import io
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import yaml
from rich.console import Console, Group

from composer_memprof.plans.fastest.progress import progress_line
from composer_memprof.plans.fastest.result import Attempt, Fastest
from composer_memprof.plans.fastest.search import Candidate, Dimension, Search, Tried
from composer_memprof.plans.fastest.searching import trial_of
from composer_memprof.plans.fastest.settings import microbatches, settings_of
from composer_memprof.plans.fastest.text import fastest_text
from composer_memprof.plans.trial import Outcome, Trial
from composer_memprof.simulation.step_time import StepTime
from tests.plans.test_plan import plan_of
from tests.support.processes.simulated_runs import plan_on_a_server

SMALL = ('model.d_model=256', 'model.n_layers=4', 'train_loader.batch_size=32', 'train_loader.max_bytes=400000')


@pytest.mark.parametrize('seed', range(40))
def test_the_search_finds_what_trials_of_all_would_find(seed: int) -> None:
    """Of made-up rates and needs that keep to the assumptions."""
    chance = random.Random(seed)
    sizes = list(microbatches(chance.choice([1, 6, 12, 16])))
    dimensions = [Dimension(chance.choice([2, 3]), chance.random() < 0.8, chance.randrange(1, 4)) for _ in range(3)]
    factors = [
        [sorted(chance.uniform(0.3, 1) for _ in range(each.count))[::-1] for each in dimensions] for _ in range(2)
    ]
    limit = chance.uniform(0.5, 12)

    def made_up(candidate: Candidate) -> Tried:
        speed, need = 1 - 0.5 / candidate.microbatch, 1.0 + candidate.microbatch
        for setting, choice in enumerate(candidate.choices):
            speed *= factors[0][setting][choice]
            need *= factors[1][setting][choice]
        return Tried(candidate, need > limit, None if need > limit else speed)

    search = Search(sizes, dimensions, made_up)
    search.run()
    everything = [
        made_up(Candidate(size, choices))
        for size, choices in itertools.product(sizes, itertools.product(*(range(each.count) for each in dimensions)))
    ]
    best = max((each.rate or 0 for each in everything), default=0)
    assert (search.best(1)[0].rate if search.best(1) else 0) == best
    assert len({each.candidate for each in search.tried}) == len(search.tried) <= search.candidates == len(everything)


def test_a_setting_that_does_not_run_is_tried_once() -> None:
    def run(candidate: Candidate) -> Tried:
        return Tried(
            candidate, candidate.microbatch > 2, None if candidate.choices[0] or candidate.microbatch > 2 else 1
        )

    search = Search([1, 2, 4], [Dimension(2, False, 1)], run)
    search.run()
    assert [each.candidate.microbatch for each in search.tried if each.candidate.choices == (1,)] == [4, 2]


@pytest.mark.slow
def test_the_fastest_of_a_sharded_config_fits_and_is_as_fast_as_its_own_plan_says() -> None:
    """Also of more microbatches than are run for it."""
    arguments = ('fsdp2', *SMALL, '--gpu', 'a100-40gb', '--memory', '1.72GB', '--ranks', '8', 'precision=amp_bf16')
    found = plan_of(*arguments, 'device_train_microbatch_size=4', '--fastest')
    assert found['code'] == 0 and found['fits'] and found['changes'] == [] and found['largest_microbatch'] is None
    fastest = found['fastest']
    assert fastest['batch_samples'] == 32 and fastest['candidates'] == len(list(microbatches(32))) * 2 * 3 * 2
    rates = [attempt['time']['tokens_per_second_per_gpu'] for attempt in fastest['best']]
    assert rates == sorted(rates, reverse=True) and rates[0] >= found['outcome']['time']['tokens_per_second_per_gpu']
    assert len(fastest['tried']) < 25
    not_fitting = [attempt for attempt in fastest['tried'] if not attempt['fits']]
    assert not_fitting and not any(attempt['time'] or attempt['error'] for attempt in not_fitting)

    for attempt in fastest['best'][:2]:
        pasted = yaml.safe_load(attempt['config'])
        sharding = pasted['parallelism_config']['fsdp2']
        overrides = [f'parallelism_config.fsdp2.{key}={str(value).lower()}' for key, value in sharding.items()]
        if attempt['in_code']:
            continue
        again = plan_of(*arguments, f'device_train_microbatch_size={attempt["microbatch"]}', *overrides, '--no-changes')
        assert again['fits'] and again['outcome']['reserved'] == attempt['reserved']
        assert again['outcome']['time']['step_seconds'] == pytest.approx(attempt['time']['step_seconds'], rel=0.01)


def test_the_exit_code_stays_that_of_the_config_as_it_is() -> None:
    found = plan_of('quickstart', *SMALL, '--gpu', 't4', '--memory', '350MB', '--fastest')
    assert (found['code'], found['fits']) == (3, False)
    best = found['fastest']['best'][0]
    assert best['fits'] and best['time'] and 'expandable' not in best['config']
    assert {attempt['name'].partition(', ')[2] for attempt in found['fastest']['tried']} >= {
        '',
        'every second Block checkpointed',
    }


def test_bad_usage_is_one_line() -> None:
    for arguments, words in (
        (('--memory', '2GB'), 'nothing is known of the speed of 2gb-sm90; name a GPU with --gpu'),
        (('--gpu', 't4', '--vary', 'seed=1,2'), 'takes no --vary'),
    ):
        ran = plan_on_a_server('quickstart', '--fastest', *arguments)
        assert (ran.returncode, len(ran.stderr.splitlines()), ran.stdout) == (2, 1, '') and words in ran.stderr


@pytest.mark.parametrize(
    ('config', 'ranks', 'wanted'),
    [
        ({}, 1, [('', 'every second Block checkpointed', 'each Block checkpointed')]),
        (
            {'parallelism_config': {'fsdp2': {'activation_checkpointing': True}}},
            8,
            [
                ('parameters kept gathered', ''),
                ('', 'every second Block checkpointed', 'each Block checkpointed'),
                ('', 'activations offloaded'),
            ],
        ),
        (
            {'parallelism_config': {'fsdp': {'sharding_strategy': 'HYBRID_SHARD'}}},
            8,
            [('', 'every second Block checkpointed', 'each Block checkpointed'), ('', 'activations offloaded')],
        ),
    ],
    ids=['no sharding', 'FSDP2', 'hybrid'],
)
def test_settings_are_those_that_the_config_can_have(config: Any, ranks: int, wanted: Any) -> None:
    base, outcome = Trial(ranks=ranks), Outcome(blocks='Block', recomputes=ranks > 1)
    settings = settings_of(
        config, base, replace(outcome, recomputes=bool(config.get('parallelism_config', {}).get('fsdp2')))
    )
    assert [tuple(choice.name for choice in setting.choices) for setting in settings] == wanted
    last = trial_of(base, settings, Candidate(3, tuple(len(setting.choices) - 1 for setting in settings)))
    assert last.overrides[0] == 'device_train_microbatch_size=3' and last.is_timed
    assert last.checkpointed == ('Block' if ranks == 1 else '') and last.every == 1


def test_the_text_shows_what_was_tried_and_configs_to_paste() -> None:
    time = StepTime(0.5, 4096.0, 2.0, None, {}, 9, {})
    good = Attempt(
        'microbatch 2, each Block checkpointed', 2, 'a:\n  b: true\n', ['x = True on each Block'], True,
        'fits with less than 5 % to spare', '', 1 << 30, 1 << 30, time, 1.0,
    )  # fmt: skip
    large = replace(good, name='microbatch 4', fits=False, verdict='does not fit', time=None)
    broken = replace(large, name='offload', fits=None, verdict='not seen', error='ValueError: no')
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(Group(*fastest_text(Fastest(8, 24, [large, good, broken], [good], 3.2))))
    shown = console.export_text()
    pasted = shown.partition('To paste')[2]
    assert yaml.safe_load(pasted) == {'a': {'b': True}}, 'the comments are comments'
    assert '# in the code of the model: x = True on each Block' in shown
    assert 'What was tried: 3 of 24 configs, in 3 s' in shown and all(len(line) <= 60 for line in shown.splitlines())
    words = ' '.join(shown.split())
    assert '500.0 ms 4,096 tokens/s 1.0 GiB barely' in words and 'not seen:' in words
    assert progress_line(0.25, 2, 'microbatch 4', good).startswith('[#####...............] trial 3: microbatch 4; best')
