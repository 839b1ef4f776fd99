"""MemProfiler: training is not changed, and a wrong parameter is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer_memprof import MemProfiler
from composer_memprof.messages import MemprofWarning
from tests.conftest import make_trainer, train
from tests.support.callbacks.mem_profiler import KEYS, Marked, stats


@pytest.mark.slow
def test_weights_are_bit_identical_with_every_batch_read() -> None:
    weights = []
    for callbacks in ([], [MemProfiler(max_iter=99, track_fsdp_mem=True)]):
        torch.manual_seed(7)
        model = train(*callbacks, model=Marked(), device_train_microbatch_size=4).state.model
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights))


def test_switched_off_it_does_nothing() -> None:
    profiler = MemProfiler(enabled=False)
    train(profiler)
    assert not Path('test-run').exists() and profiler.memory_stats == {}


def test_a_name_that_never_ran_is_told_with_the_one_that_was_meant() -> None:
    with pytest.warns(MemprofWarning, match="never ran: 'trainig_step'; did you mean 'training_step'"):
        train(MemProfiler(collect_funcs={'cpu': ['trainig_step']}))


def test_allocator_history_without_a_gpu_is_left_out_with_a_word() -> None:
    if torch.cuda.is_available():
        pytest.skip('there is a GPU')
    with pytest.warns(MemprofWarning, match='without cuda_allocator_history: there is no CUDA device'):
        train(MemProfiler(cuda_allocator_history=True))
    assert list(stats()) == KEYS


@pytest.mark.parametrize(
    ('settings', 'words'),
    [
        ({'collect_funcs': {'gpu': ['x']}}, ["'gpu'", "'cpu'"]),
        ({'collect_funcs': {'cpu': 'forward'}}, ['collect_funcs.cpu', 'list']),
        ({'warmup_iters': -1}, ['warmup_iters must be', 'not -1']),
        ({'max_iter': 1}, ['max_iter must be above warmup_iters=1', 'not 1']),
        ({'max_iter': 3, 'schedule': {'active': '1ba'}}, ['schedule', 'max_iter', 'one of them']),
        ({'schedule': {'warmup_iters': 3, 'max_iter': 2}}, ['max_iter must be', 'not 2']),
        ({'schedule': {'warmup_iter': 3}}, ['warmup_iter']),
        ({'memory_hooks': {'pre_hooks': []}}, ['memory_hooks.pre_hooks', "'pre_forward_hooks'"]),
        ({'memory_hooks': {'pre_forward_hooks': ['torch.nn.nothing']}}, ['torch.nn', "'nothing'"]),
        ({'memory_hooks': {'pre_forward_hooks': ['no_module.f']}}, ['no_module.f', 'does not import']),
        ({'saved_tensors_funcs': ['identity_lambda']}, ['saved_tensors_funcs', 'list of two']),
        ({'fsdp_mem_tracker_units': 'MB'}, ["fsdp_mem_tracker_units='MB' is unknown", "'MiB'"]),
        ({'fsdp_mem_track_module_depth': 0}, ['fsdp_mem_track_module_depth must be', 'not 0']),
        ({'enabled': 1}, ['enabled must be true or false', 'not 1']),
        ({'save_dir': 'a', 'folder': 'b'}, ["save_dir='a'", "folder='b'"]),
        ({'save_dir': ''}, ["save_dir=''"]),
        ({'collect_funcs': {'fsdp': ['training_step']}}, ['collect_funcs.fsdp', 'track_fsdp_mem=True']),
        ({'collect_funcs': []}, ['collect_funcs=[]', 'nothing']),
        ({'collect_funcs': ['loss'], 'retain_hooks_for_funcs': ['los']}, ["'los'", "'loss'"]),
        ({'memory_hooks': {}, 'enable_memory_hooks': False}, ['memory_hooks', 'enable_memory_hooks']),
        ({'save_hook_attrs': [3]}, ['save_hook_attrs must be', 'not [3]']),
        ({'fsdp_mem_tracker_root_module': 3}, ['fsdp_mem_tracker_root_module must be', 'not 3']),
        ({'filename': '../x.yaml'}, ["filename='../x.yaml'"]),
    ],
)
def test_a_mistake_is_one_line_that_names_it(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        MemProfiler(**settings)
    message = str(caught.value)
    assert '\n' not in message and all(word in message for word in words), message


def test_a_root_module_that_is_not_there_is_refused_before_the_first_batch() -> None:
    trainer = make_trainer(MemProfiler(track_fsdp_mem=True, fsdp_mem_tracker_root_module='nett'))
    with pytest.raises(ValueError, match="'net'"):
        trainer.fit()
    trainer.close()
