"""FSDPMemTracker: its tables, JSON and summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from composer.loggers import InMemoryLogger
from torch import nn

from composer_memprof import FSDPMemTracker
from composer_memprof.analysis.module_memory import read_memory_summary, summary_of_memory
from composer_memprof.recorders.modules.blocks import block_depth
from composer_memprof.recorders.modules.categories import CATEGORIES
from tests.conftest import FEATURES, Regression, entries, train
from tests.support.callbacks.module_memory import PARAMETERS, SOON, Blocks, recorded


def test_a_window_writes_its_tables_and_json_and_logs_its_peak() -> None:
    logger = InMemoryLogger()
    train(FSDPMemTracker(schedule=SOON, units='B', depth=3), loggers=[logger])
    kinds = {entry.kind: entry.path for entry in entries(Path('test-run'))}
    assert kinds == {
        'fsdp_mem_tracker': 'fsdp_mem_rank_0_train_3.log',
        'fsdp_mem_tracker.json': 'fsdp_mem_rank_0_train_3.json',
        'fsdp_mem_tracker.summary': 'fsdp_mem_rank_0_train_3.summary.json',
    }
    assert Path('test-run/memprof', kinds['fsdp_mem_tracker.json']).read_text().count('\n') == 1, 'no indentation'
    document = recorded()
    assert (document['rank'], document['epoch'], document['batch'], document['stage']) == (0, 0, 3, 'train')
    log = Path('test-run/memprof/fsdp_mem_rank_0_train_3.log').read_text()
    assert log.startswith('Device: cpu\n\tParameter: 2308 B\n')
    for name in ('Regression', 'Regression.net', 'Regression.net.0', 'Regression.net.2'):
        assert f'Module:  {name}\n' in log
    assert f'\tTotal: {document["peak"]["cpu"]["Total"]} B\n' in log
    assert 'previous outputs  cpu     2         32 B' in log
    assert document['not_seen'] == {} and 'Not seen on a CPU: what an operator holds while it runs' in log
    for category, size in document['peak']['cpu'].items():
        assert logger.data[f'fsdp_mem/peak/{category}'][-1][1] == size
    names = {module['name']: module for module in document['modules']}
    assert names['net.0']['parameter_bytes'] == 4 * (FEATURES * 32 + 32)


def test_the_summary_has_the_peaks_and_the_activations_of_equal_layers_together() -> None:
    train(FSDPMemTracker(schedule=SOON))
    document = recorded()
    path = Path('test-run/memprof/fsdp_mem_rank_0_train_3.summary.json')
    summary = read_memory_summary(path)
    assert path.stat().st_size < 4096
    assert summary.peak == document['peak']
    assert {phase: sizes['cpu']['Total'] for phase, sizes in summary.phases.items()} == {
        phase: sizes['cpu']['Total'] for phase, sizes in document['phases'].items()
    }
    own = {module['name']: module['own_activation_bytes'] for module in document['modules']}
    assert summary.activations == {'net.*': own['net.0'] + own['net.1'] + own['net.2']}
    assert summary.outside_activation_bytes == document['outside_activation_bytes']
    head = json.loads(path.read_text())
    assert (head['rank'], head['batch'], head['stage'], head['version']) == (0, 3, 'train', 1)


def test_the_summary_of_many_layers_with_long_names_stays_small() -> None:
    sizes = {'cpu': {**dict.fromkeys(CATEGORIES, 1 << 40), 'Total': 8 << 40}}
    layers = [(f'{"x" * 300}{letter}{other}', 1) for letter in 'abcdefghij' for other in 'klmnopqrst']
    summary = summary_of_memory(sizes, {'forward': sizes}, [('top', 5), *layers])
    assert len(json.dumps(summary.as_dict())) < 4500
    assert next(iter(summary.activations)) in ('top', 'x' * 200) and summary.layers_left_out >= 0


@pytest.mark.parametrize('tabulate', [False, True])
def test_depth_units_and_tabulate_shape_the_log(tabulate: bool) -> None:
    train(FSDPMemTracker(schedule=SOON, units='KiB', depth=1, tabulate=tabulate))
    log = Path('test-run/memprof/fsdp_mem_rank_0_train_3.log').read_text()
    assert 'Module:  Regression\n' in log and 'Regression.net' not in log
    assert '2.25 KiB' in log, 'the parameters'
    assert ('State & Call' in log) is tabulate


class Nested(nn.Module):
    """A transformer's shape inside of two modules that have nothing else, as LLM Foundry's MPT is."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {
                'transformer': nn.ModuleDict(
                    {'norm': nn.LayerNorm(8), 'blocks': nn.ModuleList(map(self.block, range(6)))}
                )
            }
        )

    @staticmethod
    def block(number: int) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        transformer = self.model['transformer']
        for block in transformer['blocks']:
            x = x + block(x)
        return transformer['norm'](x)


class NestedRegression(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), Nested(), nn.Linear(8, 1))


def test_by_default_the_log_goes_down_to_the_blocks_with_the_states_of_the_first_and_the_last() -> None:
    train(FSDPMemTracker(schedule=SOON), model=NestedRegression())
    log = Path('test-run/memprof/fsdp_mem_rank_0_train_3.log').read_text()
    table, _, states = log.partition('Module:  NestedRegression\n')
    name = 'NestedRegression.net.1.model.transformer.blocks'
    assert all(f'{name}.{number} ' in table for number in range(6)) and f'{name}.0.0' not in table
    assert [number for number in range(6) if f'Module:  {name}.{number}\n' in states] == [0, 5]
    assert 'in the JSON: 4 modules between the first and the last block' in table
    depth = {module['name']: (module['depth'], bool(module['states'])) for module in recorded()['modules']}
    assert depth['net.1.model.transformer.blocks.3'] == (7, True)
    assert depth['net.1.model.transformer.blocks.3.0'] == (8, False)


@pytest.mark.parametrize(
    ('model', 'depth'),
    [
        (nn.Linear(2, 2), 2),
        (Nested(), 5),
        (Blocks(), 3),
        (nn.Sequential(nn.Linear(2, 2), nn.GELU()), 2),
        (nn.Sequential(nn.ReLU(), nn.ReLU()), 2),
        (nn.ModuleDict({'head': nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 'body': Nested()}), 6),
    ],
)
def test_the_depth_of_blocks_is_that_of_the_largest_group_of_equal_modules(model: nn.Module, depth: int) -> None:
    assert block_depth(model) == depth
    assert block_depth(nn.DataParallel(model)) == depth, 'a wrapper is no level'


def test_a_root_module_limits_the_modules_but_not_the_totals() -> None:
    train(FSDPMemTracker(schedule=SOON, root_module='net.0'))
    document = recorded()
    assert [module['name'] for module in document['modules']] == ['net.0']
    assert document['phases']['optimizer']['cpu']['Parameter'] == PARAMETERS
