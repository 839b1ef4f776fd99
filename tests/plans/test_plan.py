"""``composer-memprof plan``: whether a config fits on a GPU that is not there, and what to change."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from rich.console import Console

from composer_memprof.plans.changes import changes_of
from composer_memprof.plans.combining import combination
from composer_memprof.plans.costs import Costs
from composer_memprof.plans.output.text import plan_text
from composer_memprof.plans.result import Plan, Row
from composer_memprof.plans.search import Largest, largest_microbatch
from composer_memprof.plans.starting import parsed_variation, planning_process
from composer_memprof.plans.trial import Outcome, Trial
from composer_memprof.plans.untouched_weights import UntouchedWeights
from composer_memprof.simulated_gpu.devices import find_device
from tests.conftest import run_command_that_simulates, simulated_gpu
from tests.support.json_schemas import as_promised
from tests.support.processes.simulated_runs import plan_on_a_server, run_on_a_server

pytestmark = pytest.mark.slow

MIB = 1 << 20
SMALL = ('model.d_model=512', 'model.n_layers=4', 'train_loader.max_bytes=400000')


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command_that_simulates('plan', *arguments)


def plan_of(*arguments: str) -> dict[str, Any]:
    ran = plan_on_a_server('--json', *arguments)
    assert ran.stdout, ran.stderr
    return {**as_promised('plan', ran.stdout), 'code': ran.returncode}


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

    assert outcome['precision'] == 'amp_fp16' and outcome['recomputes'] is False and not outcome['sent']
    by_block = {share['name']: share['bytes'] for share in outcome['by_block']}
    within = [share['bytes'] for share in outcome['modules'] if share['name'].startswith('blocks.')]
    assert len(within) > 4 and by_block['blocks.* (4)'] == sum(within) and 'head' in by_block

    rows = {row['name']: row for row in found['changes']}
    assert {'half the microbatch', 'checkpoint each Block', 'expandable segments', 'fused optimizer'} <= set(rows)
    assert 'bfloat16' not in rows, 'a T4 has no units for it'
    assert all(row['how'] and not row['outcome']['error'] for row in found['changes'])
    assert rows['half the microbatch']['outcome']['microbatch'] == 8
    assert rows['checkpoint each Block']['saved'] > sizes['activation'] // 2
    matrices = 4 * 8 * 512**2  # numbers in those of the blocks but the last one, whose product backward does not need
    recomputed = 2 * matrices * 16 * 128 + 4 * 4 * 16 * 128 * 128 * 512  # and attention's two products
    assert rows['checkpoint each Block']['costs']['flops'] == pytest.approx(recomputed, rel=0.01)
    assert rows['checkpoint each Block']['cost'] == '', 'its time says it'
    assert rows['half the microbatch']['costs'] == {'flops': None, 'sent': 0, 'sent_between_nodes': 0}
    assert found['combination'] is None and found['not_tried'] == []
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


def test_a_sharded_plan_counts_what_a_rank_sends_and_says_what_composer_does_not_take() -> None:
    found = plan_of('fsdp2', *SMALL, '--ranks', '16', 'precision=amp_bf16')
    parameters, blocks = found['outcome']['host_model'] // 4, 4 * 12 * 512**2
    sent = found['outcome']['sent']
    assert sent['reduce_scatter'] == pytest.approx(4 * parameters * 15 / 16, rel=0.01)
    assert sent['all_gather'] == pytest.approx(2 * (parameters + blocks) * 15 / 16, rel=0.02), 'blocks in backward too'
    assert found['outcome']['sent_between_nodes'] == sum(sent.values())
    assert (found['ranks_per_node'], found['outcome']['one_unit']) == (8, '')
    rows = {row['name']: row for row in found['changes']}
    assert rows['half the microbatch']['cost'] == 'more, smaller microbatches, +100% sent'
    assert rows['keep parameters gathered after forward']['cost'].endswith('% sent')
    assert rows['keep parameters gathered after forward']['costs']['sent'] < 0
    assert rows['offload the activations of each Block']['saved'] > 0
    assert rows['checkpoint each Block']['how'] == 'parallelism_config.fsdp2.activation_checkpointing=true'
    assert [line.partition(':')[0] for line in found['not_tried']] == ['offload of the parameters to the CPU', 'HSDP']

    one_node = plan_of('fsdp2', *SMALL, '--ranks', '16', '--ranks-per-node', '16', '--no-changes')
    assert (one_node['ranks_per_node'], one_node['outcome']['sent_between_nodes']) == (16, 0)


OWN_MODELS = """
import torch
from composer_memprof.examples.byte_gpt import ByteGPT

class OneUnit(ByteGPT):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.blocks = torch.nn.Sequential(*self.blocks)  # which tells FSDP nothing

class Recomputing(ByteGPT):
    def forward(self, batch):
        positions = torch.arange(batch['input_ids'].shape[1], device='cuda')
        x = self.byte_embedding(batch['input_ids']) + self.position_embedding(positions)
        return self.head(self.norm(torch.utils.checkpoint.checkpoint(self.blocks, x, use_reentrant=False)))

class Flash(ByteGPT):
    def forward(self, batch):
        import flash_attn
        output = super().forward(batch)
        heads = torch.zeros(1, 8, 2, 64, device='cuda', dtype=torch.bfloat16)
        flash_attn.flash_attn_func(heads, heads, heads)
        return output
"""


def test_blocks_that_fsdp_gathers_at_once_are_told_and_hsdp_sends_less_between_nodes() -> None:
    Path('own_models.py').write_text(OWN_MODELS)
    arguments = ('model.name=own_models.OneUnit', 'parallelism_config.fsdp={}', 'precision=amp_bf16')
    found = plan_of('quickstart', *SMALL, *arguments, '--ranks', '16')
    assert found['outcome']['one_unit'] == 'Sequential'
    rows = {row['name']: row for row in found['changes']}
    assert all(not row['outcome']['error'] for row in found['changes'])
    units = rows['an FSDP unit for each Block']
    assert units['saved'] > 0 and units['how'] == '_fsdp_wrap = True on each Block'
    assert units['outcome']['one_unit'] == ''
    assert rows['checkpoint each Block']['how'].endswith(' and _activation_checkpointing = True on each Block')
    hsdp = rows['HSDP, 2 replicas']
    assert hsdp['how'] == 'parallelism_config.fsdp.data_parallel_replicate_degree=2'
    assert hsdp['saved'] < 0 and 'sent between nodes' in hsdp['cost']
    assert hsdp['outcome']['sent_between_nodes'] < 0.2 * found['outcome']['sent_between_nodes']
    assert hsdp['outcome']['sent']['all_reduce'] > found['outcome']['sent']['all_reduce']


def test_a_model_that_recomputes_is_not_offered_checkpoints() -> None:
    Path('own_models.py').write_text(OWN_MODELS)
    found = plan_of('quickstart', 'model.name=own_models.Recomputing', 'train_loader.max_bytes=30000')
    assert found['outcome']['recomputes'] is True
    names = {row['name'] for row in found['changes']}
    assert 'bfloat16' in names and not any(name.startswith('checkpoint') for name in names)


def test_a_plan_says_that_a_stand_in_of_flash_attention_was_used() -> None:
    Path('own_models.py').write_text(OWN_MODELS)
    arguments = ('quickstart', 'model.name=own_models.Flash', 'train_loader.max_bytes=30000', '--no-changes')
    found = plan_of(*arguments, '--gpu', 'a100-40gb')
    assert len(found['outcome']['assumed']) == 1
    assert found['outcome']['assumed'][0].startswith('flash_attn is not installed: a stand-in allocated')


def test_where_nothing_fits_alone_a_plan_finds_what_fits_together() -> None:
    small = (*SMALL[:-1], 'model.n_layers=6', 'train_loader.batch_size=4', 'train_loader.max_bytes=100000')
    found = plan_of('quickstart', *small, 'precision=fp32', '--memory', '480MB', '--compute-capability', '7.5')
    assert found['code'] == 3 and not any(row['outcome']['fits'] for row in found['changes'])
    assert found['largest_microbatch']['samples'] == 0
    together = found['combination']
    # Which changes suffice depends on torch's own workspaces.
    parts = together['name'].split(' + ')
    assert together['outcome']['fits'] and len(parts) > 1 and 'optimizer.fused=true' in together['how']
    assert ('checkpoint each Block' in parts) == ('apply_activation_checkpointing' in together['how'])


@pytest.mark.parametrize(
    ('precision', 'compute_capability', 'offered'),
    [
        ('fp32', 9, 'precision=amp_bf16'),
        ('amp_fp16', 8, 'precision=amp_bf16'),
        ('amp_bf16', 8, None),
        ('fp32', 7, 'precision=amp_fp16'),
        ('amp_fp16', 7, None),
    ],
)
def test_a_precision_is_offered_that_the_gpu_has_and_the_run_does_not_use(
    precision: str, compute_capability: int, offered: Optional[str]
) -> None:
    changes = changes_of({}, Trial(), Outcome(precision=precision, microbatch=1), compute_capability)
    found = [change.how for change in changes if change.how.startswith('precision=')]
    assert found == ([offered] if offered else [])


@pytest.mark.parametrize(
    ('needs', 'wanted'),
    [
        (lambda some: 0 if {'b', 'd'} <= set(some) else 9 - len(some), ['b', 'd']),
        (lambda some: 0 if 'd' in some else 9 - ('b' in some), ['d']),
        (lambda some: 0 if some == ['c', 'a'] else 5 if some == ['c'] else 9, ['c', 'a']),
        (lambda some: 9 - ('c' in some), ['c']),
    ],
    ids=['needless ones are left out', 'one suffices', 'one that helps only later', 'nothing fits'],
)
def test_a_combination_takes_what_lowers_the_need_and_leaves_out_the_rest(needs: Any, wanted: list[str]) -> None:
    assert combination(['a', 'b', 'c', 'd'], needs) == wanted


def test_the_text_warns_of_one_unit_and_shows_costs_errors_and_what_to_write() -> None:
    outcome = Outcome(
        allocated=8 << 30, microbatch=1, precision='fp32', blocks='Layer', one_unit='Net', sent={'all_gather': 1 << 30}
    )
    saved = Row('less', 'x.y=1', '+10% FLOPs', 1 << 30, Costs(1, 0, 0), outcome)
    broken = replace(saved, name='worse', outcome=Outcome(error='ValueError: no'))
    together = replace(saved, name='less + worse')
    made = Plan(
        gpu='t4', total=16 << 30, outside={}, ranks=16, ranks_per_node=8, torch='2.7.0', outcome=outcome, fits=False,
        verdict='does not fit',
        out_of_memory='CUDA out of memory', largest_microbatch=Largest(0, ''), changes=[saved, broken],
        combination=together, not_tried=['HSDP: not offered'], grid=[],
    )  # fmt: skip
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(plan_text(made))
    shown = console.export_text()
    words = ' '.join(shown.split())
    assert 'FSDP gathers the parameters of every Layer at once, since Net is one unit; set _fsdp_wrap = True' in words
    assert 'with 1 sample in a microbatch, fp32' in words and '1.0 GiB in all_gather' in words
    assert 'None of them fits alone; these fit together' in words and 'worse: ValueError: no' in words
    assert 'less: x.y=1' in words and 'HSDP: not offered' in words
    assert all(len(line) <= 60 for line in shown.splitlines())


def test_few_microbatches_need_what_all_of_them_need() -> None:
    script = """
from composer_memprof.plans.forking import outcome_of
from composer_memprof.plans.output.text import plan_text
from composer_memprof.plans.trial import Trial
settings = ('model.d_model=256', 'train_loader.batch_size=24', 'device_train_microbatch_size=2')
found = [outcome_of('quickstart', Trial(overrides=settings, few_microbatches=few)) for few in (False, True)]
print([(each.error, each.allocated, each.reserved, each.phase) for each in found])
"""
    ran = run_on_a_server(script, environment=simulated_gpu('t4'))
    every, few = eval(ran.stdout)
    assert every == few and not every[0] and every[1] > 0


def test_a_mistake_in_the_config_or_in_an_option_is_one_line() -> None:
    for arguments, words in (
        (('quickstart', '--vary', 'optimiser.lr=1,2'), 'optimiser is unknown'),
        (('quickstart', 'optimiser.lr=1'), 'optimiser is unknown'),
        (('nothing.yaml',), "'nothing.yaml' is not a file"),
        (('quickstart', '--vary', 'seed'), "--vary='seed' must be key=value,value,…"),
        (('quickstart', '--gpu', 'h1000'), "there is no GPU named 'h1000'"),
        (('quickstart', '--ranks', '12'), 'ranks=12 must be a multiple of ranks_per_node=8'),
    ):
        ran = plan_on_a_server(*arguments)
        assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
        assert words in ran.stderr


def test_a_config_that_does_not_run_says_why(tmp_path: Path) -> None:
    ran = plan_on_a_server('quickstart', 'precision=fp8_from_mars')
    assert ran.returncode == 1 and 'not seen: the config does not run' in ran.stdout and 'fp8_from_mars' in ran.stdout


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
    tried.clear()
    assert limit < 8 or largest_microbatch({'train_loader': {'batch_size': 8}}, Trial(), 8, run, True) == found
    assert 8 not in tried, 'what is known to fit is not tried again'
    in_batch = largest_microbatch({'train_loader': {}}, Trial(), 8, run)
    wanted = (min(limit, 8), "the loader's batch" if limit >= 8 else '', None if limit >= 8 else limit + 1)
    assert (in_batch.samples, in_batch.limit, in_batch.next_tried) == wanted


def test_what_ends_the_search_is_told_if_it_is_not_the_memory() -> None:
    def run(trial: Trial) -> Outcome:
        size = int(trial.overrides[-1].partition('=')[2])
        return Outcome(microbatch=min(size, 1000)) if size < 5000 else Outcome(error='ValueError: too large')

    loader = {'train_loader': {'batch_size': 8}}
    by_data = largest_microbatch(loader, Trial(), 8, run)
    assert by_data.limit == 'the data' and 938 <= by_data.samples <= 1000
    by_error = largest_microbatch(loader, Trial(), 8, lambda trial: Outcome(error='ValueError: no'))
    assert (by_error.samples, by_error.limit) == (0, 'ValueError: no')


def test_a_variation_that_the_batch_limits_has_no_figures_of_another_size() -> None:
    small = ('quickstart', *SMALL, '--gpu', 't4', 'train_loader.batch_size=8')
    found = plan_of(*small, '--vary', 'device_train_microbatch_size=4,16')
    fitting, limited = (row['outcome'] for row in found['grid'])
    assert (fitting['fits'], fitting['verdict']) == (True, 'fits')
    assert (limited['fits'], limited['verdict'], limited['allocated']) == (None, 'not seen', 0)
    assert limited['error'] == 'the microbatch is limited to 8 samples by the batch; set a larger batch_size'


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


def test_a_plan_evaluates_and_writes_checkpoints_if_asked(tmp_path: Path) -> None:
    loader = 'eval_loader={name: text_files, paths: "{stdlib}/*.py", batch_size: 128, max_bytes: 400000}'
    asked = ('quickstart', *SMALL, loader, f'save_folder={tmp_path}', '--no-changes', '--gpu', 't4')
    without = plan_of(*asked)
    found = plan_of(*asked, '--eval')
    assert (without['with_evaluation'], without['outcome']['evaluations'], without['outcome']['checkpoints']) == (
        False,
        0,
        0,
    )
    assert (found['code'], found['with_evaluation']) == (0, True)
    assert (found['outcome']['evaluations'], found['outcome']['checkpoints']) == (2, 2)
    assert found['outcome']['phase'].startswith('eval'), 'eight times as many samples in a batch'
    assert found['outcome']['allocated'] > without['outcome']['allocated']
    assert not list(tmp_path.iterdir()), 'checkpoints of a trial go elsewhere'


def test_a_trial_imports_no_algorithm_of_composer_unless_the_config_names_one() -> None:
    code = (
        'import sys; from composer_memprof.plans.running import run_trial; '
        'from composer_memprof.plans.trial import Trial; '
        "outcome = run_trial('fsdp2', Trial(overrides=tuple(sys.argv[1:]), ranks=8)); "
        "print(outcome.error, outcome.allocated > 0, 'composer.algorithms' in sys.modules)"
    )
    _, environment = planning_process('fsdp2', (), find_device('h100-80gb'), 8, changes=False)
    clipping = 'algorithms.gradient_clipping={clipping_type: norm, clipping_threshold: 1.0}'
    for overrides, imported in (((), False), ((clipping,), True)):
        command = [sys.executable, '-c', code, *overrides]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout.splitlines()[-1] == f' True {imported}', ran.stdout + ran.stderr
