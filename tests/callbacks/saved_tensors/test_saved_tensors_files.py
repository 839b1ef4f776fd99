"""SavedTensorsHook in a Trainer: what its files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from composer.core import Callback, State
from composer.loggers import Logger
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.multiprocessing.reductions import StorageWeakRef

from composer_memprof import SavedTensorsHook
from composer_memprof.recorders.modules.names import OUTSIDE
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder
from tests.conftest import Regression, entries, loader, train
from tests.support.callbacks.saved_tensors import assert_bare

JSON = Path('test-run/memprof/rank0.3.saved_tensors.json')


def written(path: Path = JSON) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_a_window_writes_json_and_a_table() -> None:
    train(SavedTensorsHook(), batches=5)
    data = written()
    assert (data['rank'], data['epoch'], data['batch'], data['largest_batch']) == (0, 0, 3, 2)
    # ReLU's output (8, 32); pow keeps the difference (8, 1).
    assert {row['name']: row['bytes'] for row in data['modules'] if row['bytes']} == {
        'net.1': 8 * 32 * 4,
        OUTSIDE: 8 * 4,
    }
    assert data['input_bytes'] == 8 * 16 * 4
    for rows in ('modules', 'operations', 'shapes'):
        assert sum(row['bytes'] for row in data[rows]) == data['total_bytes']
    text = JSON.with_suffix('.txt').read_text()
    assert 'ReluBackward0' in text and 'net.1' in text
    assert {entry.kind for entry in entries(Path('test-run'))} == {'saved_tensors_hook', 'saved_tensors_hook.table'}


def test_four_microbatches_keep_the_same_total_and_a_quarter_at_a_time() -> None:
    train(SavedTensorsHook(), batches=5)
    whole = written()
    train(SavedTensorsHook(folder='micro'), batches=5, device_train_microbatch_size=2)
    micro = written(Path('micro') / JSON.name)
    assert (whole['forwards'], micro['forwards']) == (1, 4)
    for name in ('total_bytes', 'parameter_bytes', 'input_bytes'):
        assert micro[name] == whole[name]
    assert micro['peak_bytes'] * 4 == whole['peak_bytes']


@pytest.mark.parametrize('kind', [None, *CheckpointImpl])
@pytest.mark.parametrize('microbatch', [8, 2])
def test_each_list_sums_to_its_total_with_checkpoints_and_microbatches(
    microbatch: int, kind: Optional[CheckpointImpl]
) -> None:
    model = Regression()
    model.net = nn.Sequential(nn.Linear(16, 16), model.net)
    if kind is not None:
        model.net[1] = checkpoint_wrapper(model.net[1], checkpoint_impl=kind)
    train(SavedTensorsHook(), model=model, batches=5, device_train_microbatch_size=microbatch)
    data = written()
    assert data['total_bytes'] > 0
    for rows in ('modules', 'operations', 'shapes'):
        assert sum(row['bytes'] for row in data[rows]) == data['total_bytes']
    modules = {row['name']: row for row in data['modules']}
    assert sum(row['parameter_bytes'] for row in modules.values()) == data['parameter_bytes']
    assert modules['']['inclusive_bytes'] + modules[OUTSIDE]['bytes'] == data['total_bytes']
    assert {name: row['calls'] for name, row in modules.items() if name != OUTSIDE} == dict.fromkeys(
        ('', 'net', 'net.0', 'net.1', 'net.1.0', 'net.1.1', 'net.1.2'), 8 // microbatch
    )
    assert f'{data["total_bytes"]} B, each storage once; forward calls: {8 // microbatch}' in (
        JSON.with_suffix('.txt').read_text()
    )


def test_the_largest_batch_is_reported_in_full_and_the_others_by_their_totals() -> None:
    train(SavedTensorsHook(schedule={'skip': '1ba', 'active': '3ba'}), batches=5, train_dataloader=loader(5))
    data = written(JSON.with_name('rank0.4.saved_tensors.json'))
    assert [row['batch'] for row in data['batches']] == [1, 2, 3]
    assert all(row['total_bytes'] == data['total_bytes'] for row in data['batches'])


def test_without_gradients_nothing_is_saved_and_no_hooks_are_set() -> None:
    class Look(Callback):
        def eval_batch_end(self, state: State, logger: Logger) -> None:
            assert_bare(state.model)

    callback = SavedTensorsHook(schedule={'active': '2ba', 'stages': ['eval']})
    train(callback, Look(), batches=3, eval_dataloader=loader(2), eval_interval='1ep')
    (entry,) = entries(Path('test-run'), 'saved_tensors_hook')
    data = written(Path('test-run/memprof') / entry.path)
    assert data['total_bytes'] == data['packed_bytes'] == 0
    assert any('gradients are off' in what for what in data['unseen'])


def test_two_recorders_of_one_model_see_the_same() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    one, other = SavedTensorsRecorder(model), SavedTensorsRecorder(model)
    one.begin()
    other.begin()
    model(torch.randn(2, 8)).sum().backward()
    one.end()
    other.end()
    assert one.result()() == other.result()()
    assert one.result()().total_bytes == 2 * 16 * 4
    assert_bare(model)


def test_a_graph_that_outlives_its_window_still_runs_backward() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid())
    recorder = SavedTensorsRecorder(model)
    with recorder:
        output = model(torch.randn(2, 8))
    assert recorder.result()().left_bytes == 2 * 16 * 4
    storage = StorageWeakRef(output.untyped_storage())
    output.sum().backward()
    del output
    assert model[0].weight.grad is not None
    assert storage.expired()
