"""``composer-memprof plan``: whether a config fits on a GPU that is not there, and what to change."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_memprof.plan.search import Largest, largest_microbatch
from composer_memprof.plan.starting import parsed_variation
from composer_memprof.plan.trial import Outcome, Trial
from composer_memprof.plan.untouched_weights import UntouchedWeights
from tests.conftest import run_command_that_simulates

MIB = 1 << 20
SMALL = ('model.d_model=512', 'model.n_layers=4', 'train_loader.max_bytes=400000')


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command_that_simulates('plan', *arguments)


def plan_of(*arguments: str) -> dict[str, Any]:
    ran = plan('--json', *arguments)
    assert ran.stdout, ran.stderr
    return {**json.loads(ran.stdout), 'code': ran.returncode}


def test_a_plan_says_whether_it_fits_what_fills_the_memory_and_what_each_change_gives() -> None:
    found = plan_of('quickstart', *SMALL, '--gpu', 't4')
    assert (found['code'], found['fits'], found['gpu']) == (0, True, 't4')
    outcome = found['outcome']
    assert outcome['microbatch'] == 16 and outcome['phase'] == 'backward' and outcome['blocks'] == 'Block'
    sizes = {share['name']: share['bytes'] for share in outcome['categories']}
    parameters = outcome['host_model']
    assert sizes['parameter'] == pytest.approx(parameters, rel=0.01)
    assert sizes['optimizer_state'] == pytest.approx(2 * parameters, rel=0.05), 'as the allocator rounds'
    assert sum(sizes.values()) == pytest.approx(outcome['allocated'], rel=0.01), 'but for rounding'

    rows = {row['name']: row for row in found['changes']}
    assert {'half the microbatch', 'checkpoint each Block', 'expandable segments', 'fused optimizer'} <= set(rows)
    assert all(not row['outcome']['error'] for row in found['changes'])
    assert rows['half the microbatch']['outcome']['microbatch'] == 8
    assert rows['checkpoint each Block']['saved'] > sizes['activation'] // 2
    assert rows['checkpoint each Block']['cost'].endswith('FLOPs, recomputed')
    assert not list(Path().iterdir()), 'a plan leaves no files'

    assert all(row['outcome']['fits'] for row in found['changes'])

    largest = found['largest_microbatch']['samples']
    assert found['largest_microbatch']['limit'] == ''
    for size, fits in ((largest, True), (largest + max(2, largest // 8), False)):
        overrides = (f'device_train_microbatch_size={size}', f'train_loader.batch_size={size}')
        checked = plan_of('quickstart', *SMALL, '--gpu', 't4', *overrides, '--vary', 'seed=1')
        assert checked['fits'] is fits, size


def test_what_does_not_fit_says_by_how_much_and_a_grid_shows_what_would() -> None:
    arguments = ('quickstart', *SMALL, '--memory', '1GB', '--compute-capability', '8.0', 'train_loader.batch_size=64')
    found = plan_of(*arguments, '--vary', 'device_train_microbatch_size=4,64', '--vary', 'optimizer.foreach=true,false')
    assert (found['code'], found['fits'], found['changes']) == (3, False, [])
    available = found['total'] - sum(found['outside'].values())
    assert found['outcome']['reserved'] > available and 'CUDA out of memory' in found['out_of_memory']
    names = [row['name'] for row in found['grid']]
    assert names[:2] == [f'device_train_microbatch_size=4 optimizer.foreach={value}' for value in ('true', 'false')]
    assert [not row['outcome']['out_of_memory'] for row in found['grid']] == [True, True, False, False]
    shown = plan(*arguments, '--vary', 'seed=1')
    assert shown.stdout.startswith('simulated 1gb-sm80: does not fit. ') and ' of 461.7 MiB' in shown.stdout


def test_a_mistake_in_the_config_or_in_an_option_is_one_line() -> None:
    for arguments, words in (
        (('quickstart', '--vary', 'optimiser.lr=1,2'), 'optimiser is unknown'),
        (('quickstart', 'optimiser.lr=1'), 'optimiser is unknown'),
        (('nothing.yaml',), "'nothing.yaml' is not a file"),
        (('quickstart', '--vary', 'seed'), "--vary='seed' must be key=value,value,…"),
        (('quickstart', '--gpu', 'h1000'), "there is no GPU named 'h1000'"),
        (('quickstart', '--ranks', '12'), 'ranks=12 must be a multiple of ranks_per_node=8'),
    ):
        ran = plan(*arguments)
        assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
        assert words in ran.stderr


def test_a_config_that_does_not_run_says_why(tmp_path: Path) -> None:
    ran = plan('quickstart', 'precision=fp8_from_mars')
    assert ran.returncode == 1 and 'the config does not run' in ran.stdout and 'fp8_from_mars' in ran.stdout


@pytest.mark.parametrize('limit', [0, 1, 5, 8, 100, 4097])
def test_the_search_finds_the_largest_microbatch_that_fits(limit: int) -> None:
    tried = []

    def run(trial: Trial) -> Outcome:
        size = int(trial.overrides[-1].partition('=')[2])
        tried.append(size)
        return Outcome(microbatch=size, out_of_memory='' if size <= limit else 'CUDA out of memory')

    found = largest_microbatch({'train_loader': {'batch_size': 8}}, Trial(), 8, run)
    assert found.samples <= limit and limit - found.samples <= limit // 16 and found.limit == ''
    assert len(tried) < 20
    in_batch = largest_microbatch({'train_loader': {}}, Trial(), 8, run)
    assert in_batch == Largest(min(limit, 8), "the loader's batch" if limit >= 8 else '')


def test_what_ends_the_search_is_told_if_it_is_not_the_memory() -> None:
    def run(trial: Trial) -> Outcome:
        size = int(trial.overrides[-1].partition('=')[2])
        return Outcome(microbatch=min(size, 1000)) if size < 5000 else Outcome(error='ValueError: too large')

    loader = {'train_loader': {'batch_size': 8}}
    by_data = largest_microbatch(loader, Trial(), 8, run)
    assert by_data.limit == 'the data' and 938 <= by_data.samples <= 1000
    by_error = largest_microbatch(loader, Trial(), 8, lambda trial: Outcome(error='ValueError: no'))
    assert by_error == Largest(0, 'ValueError: no')


def test_a_loader_without_a_batch_ends_its_trial_and_limits_the_search() -> None:
    few = ('train_loader.max_bytes=6000', 'train_loader.batch_size=32', 'model.d_model=32')
    found = plan_of('quickstart', '--gpu', 't4', *few)
    assert found['fits'] and found['largest_microbatch']['samples'] < 48
    assert 'less than one batch' in found['largest_microbatch']['limit']


def test_weights_that_are_not_initialized_are_large_floats_only() -> None:
    with UntouchedWeights():
        assert torch.full((300, 300), 7).sum() == 7 * 90_000
        assert int(torch.ones(300, 300, dtype=torch.bool).tril_().nonzero().shape[0]) == 300 * 301 // 2
        assert torch.arange(90_000).view(300, 300).t_()[0, 1] == 300
        assert torch.nn.init.orthogonal_(torch.empty(400, 300)).shape == (400, 300)
        assert torch.randn(300, 300, generator=torch.Generator()).dtype == torch.float32
        layer = torch.nn.Linear(1000, 1000)
        assert layer.weight.shape == (1000, 1000) and layer.bias.abs().sum() > 0, 'small tensors are filled'


def test_a_variation_is_a_key_and_its_values() -> None:
    assert parsed_variation('a.b=1,2') == ('a.b', ['1', '2'])
    with pytest.raises(ValueError, match='must be key=value'):
        parsed_variation('a=')
