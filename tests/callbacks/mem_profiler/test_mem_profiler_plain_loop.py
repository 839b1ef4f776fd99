"""MemProfiler without a Trainer: plain loops and readings by hand."""

from __future__ import annotations

import doctest
import gzip
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from composer_memprof import MemProfiler
from composer_memprof.callbacks.mem_profiler import by_hand
from composer_memprof.recorders.functions import marked
from composer_memprof.recorders.torch_private.saved_tensor_hooks import hooks_are_active
from tests.conftest import child_environment, entries, make_trainer, train
from tests.support.callbacks.mem_profiler import KEYS, stats
from tests.support.processes import warm_python


def test_a_plain_loop_is_read_too() -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    with MemProfiler(save_dir='here', track_fsdp_mem=True).connect(model, [optimizer]) as profiler:
        for _ in range(3):
            with profiler.memprofile_ctx('training_step'):
                loss = model(torch.ones(2, 4)).pow(2).sum()
                loss.backward()
                with profiler.memprofile_ctx('optimizer_step'):
                    optimizer.step()
    found = stats(folder=Path('here'))
    assert {key.split('.')[1] for key in found} == {'training_step', 'optimizer_step'}
    assert found[KEYS[1]]['npp_diff'] == 2 * 4 * 4  # the input
    assert found[KEYS[1]]['packed_bytes_diff'] == (2 * 4 + 2 * 3) * 4  # and the output for pow
    assert profiler.fsdp_memory_stats['training_step', 2]['cpu']['OptState'] == 2 * 15 * 4 + 2 * 4
    assert {entry.status for entry in entries(Path('here'))} == {'saved'}
    assert marked._listeners == () and not model._forward_hooks


NEVER_DISCONNECTED = """
import torch
from composer_memprof import MemProfiler

def loop():
    model = torch.nn.Linear(8, 1)
    settings = dict(save_dir='here', dump_memorystats_pickle=True, compress=True)
    profiler = MemProfiler(warmup_iters=0, **settings).connect(model)
    with profiler.memprofile_ctx('step'):
        model(torch.ones(4, 8)).sum().backward()
    {end}

loop()
"""


@pytest.mark.parametrize(('end', 'status'), [('pass', 0), ("raise ValueError('mine')", 1), ('raise SystemExit(3)', 3)])
def test_a_plain_loop_that_is_never_disconnected_loses_nothing(end: str, status: int) -> None:
    program = NEVER_DISCONNECTED.format(end=end)
    ran = warm_python.run(
        [sys.executable, '-c', program], capture_output=True, text=True, check=False, env=child_environment()
    )
    assert (ran.returncode, 'composer_memprof' in ran.stderr) == (status, False), ran.stderr
    assert {entry.path for entry in entries(Path('here')) if entry.status == 'saved'} == {
        'rank_0_memory_stats.yaml.gz',
        'rank_0_memory_stats.pickle.gz',
    }
    pickled = pickle.loads(gzip.decompress(Path('here/rank_0_memory_stats.pickle.gz').read_bytes()))
    text = gzip.decompress(Path('here/rank_0_memory_stats.yaml.gz').read_bytes())
    assert list(pickled) == list(yaml.safe_load(text)) == ['0.step.1.start', '0.step.1.end']


def test_a_profiler_of_a_plain_loop_that_is_given_to_a_trainer_saves_the_loops_window_first() -> None:
    profiler = MemProfiler(warmup_iters=0, save_dir='here', dump_memorystats_pickle=True, compress=True)
    profiler.connect(torch.nn.Linear(8, 1))
    with profiler.memprofile_ctx('step'):
        pass
    train(profiler)
    assert list(pickle.loads(gzip.decompress(Path('here/rank_0_memory_stats.pickle.gz').read_bytes()))) == [
        '0.step.1.start',
        '0.step.1.end',
    ]


def test_moments_read_by_hand_are_calls_of_their_function() -> None:
    model = torch.nn.Linear(8, 1)
    with MemProfiler(save_dir='here', max_iter=3, dump_memorystats_pickle=True).connect(model) as profiler:
        for _ in range(5):
            profiler.snap('step', 'start')
            model(torch.ones(4, 8)).sum().backward()
            profiler.snap('step', 'middle', reset_mem_hooks=True)
            profiler.snap('step', 'end')
            profiler.snap('alone', 'now')
        profiler.dump_memory_stats()
        profiler.snap('late', 'end')
    found = stats(folder=Path('here'))
    steps = [f'0.step.{n}.{moment}' for n in (2, 3) for moment in ('start', 'middle', 'end')]
    assert set(found) == {*steps, '0.alone.2.now', '0.alone.3.now'}
    assert [found[key]['npp_diff'] for key in steps[:3]] == [0, 4 * 8 * 4, 0]
    assert pickle.loads(Path('here/rank_0_memory_stats.pickle').read_bytes()) == found
    assert profiler.snap('step', 'start') is None and len(profiler.memory_stats) == len(found)


def test_a_call_read_by_hand_that_an_exception_ends_is_dropped_once_the_function_begins_again() -> None:
    model = torch.nn.Linear(8, 1)

    def step(fails: bool = False) -> None:
        profiler.snap('step', 'start')
        loss = model(torch.ones(4, 8)).sum()
        if fails:
            raise ValueError
        loss.backward()
        profiler.snap('step', 'end')

    def fail() -> None:
        with pytest.raises(ValueError):
            step(fails=True)

    settings: dict[str, Any] = {'collect_funcs': ['step'], 'warmup_iters': 0, 'max_iter': 2, 'save_dir': 'here'}
    with MemProfiler(**settings).connect(model) as profiler:
        fail()
        step()
    second = profiler.memory_stats['0.step.2.end']
    assert second['packed_bytes_diff'] == second['npp_diff'] == 4 * 8 * 4
    with MemProfiler(**settings).connect(model) as profiler:
        fail()
        fail()
        assert hooks_are_active() and model._forward_hooks
        step()
        assert not hooks_are_active() and not model._forward_hooks, 'the second call was the last to be read'
    assert list(profiler.memory_stats) == ['0.step.1.start', '0.step.2.start']


def test_the_examples_of_readings_by_hand_leave_no_files_in_the_current_folder() -> None:
    assert doctest.testmod(by_hand).failed == 0
    assert not list(Path().iterdir())


def test_hooks_removed_by_hand_are_gone_and_the_other_readings_go_on() -> None:
    profiler, hooked = MemProfiler(max_iter=3), []
    trainer = make_trainer(profiler)
    model = trainer.state.model

    def look(*_: Any) -> None:
        hooked.append(len(model._forward_hooks))
        if len(hooked) == 2:
            profiler.remove_memprofiler_hooks()

    model.net.register_forward_hook(look)
    trainer.fit()
    trainer.close()
    assert hooked[:3] == [0, 2, 1], 'the other one counts what autograd saves'
    third = stats()['0.training_step.3.end']
    assert third['packed_bytes_diff'] > 0 and 'rss_diff' not in third
