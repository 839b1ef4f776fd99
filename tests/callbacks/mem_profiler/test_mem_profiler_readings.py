"""MemProfiler: memory at the start and end of functions, in which calls and formats."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from composer_memprof import FSDPMemTracker, MemProfiler, SavedTensorsHook
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.torch_private.saved_tensor_hooks import hooks_are_active
from composer_memprof.report.text.tables.function_memory import json_line, yaml_entry
from tests.conftest import Regression, entries, json_lines, loader, make_trainer, train
from tests.support.callbacks.mem_profiler import FOLDER, KEYS, stats


def test_the_second_batch_is_read_at_its_start_and_end() -> None:
    profiler = MemProfiler()
    train(profiler, SavedTensorsHook(schedule={'skip': '1ba', 'active': '1ba'}))
    found = stats()
    assert list(found) == KEYS
    for values in found.values():
        assert 100 << 20 < values['rss'] < values['vms']
    (hook,) = entries(FOLDER, 'saved_tensors_hook')
    packed = json.loads((FOLDER / hook.path).read_text())['packed_bytes']
    assert found[KEYS[0]]['npp_diff'] == found[KEYS[0]]['packed_bytes_diff'] == 0
    assert found[KEYS[1]]['packed_bytes_diff'] == packed > found[KEYS[1]]['saved_bytes_diff'] > 0
    assert not [name for name in found[KEYS[0]] if 'forward' in name], 'no forward has run yet'
    end = found[KEYS[1]]
    assert end['rss_diff'] == end['rss_post_forward'] - end['rss_pre_forward']
    assert 0 == end['npp_pre_forward'] < end['npp_post_forward'] == end['npp_diff'] < packed
    assert profiler.memory_stats == found


@pytest.mark.parametrize(
    'settings',
    [{'enable_saved_tensors_hooks': False}, {'collect_funcs': {'cpu': ['training_step'], 'default': ['backward']}}],
)
def test_what_autograd_saves_is_left_out_where_nobody_counts_it(settings: dict[str, Any]) -> None:
    train(MemProfiler(**settings))
    found = stats()
    for key in KEYS:
        assert not [name for name in found[key] if name.startswith('npp') or name.endswith('bytes_diff')]
    assert found[KEYS[1]]['rss_diff'] == found[KEYS[1]]['rss_post_forward'] - found[KEYS[1]]['rss_pre_forward']


def test_phases_are_counted_by_call_and_nested_in_their_batch() -> None:
    functions = ['training_step', 'dataloader', 'forward', 'loss', 'backward', 'optimizer_step']
    train(
        MemProfiler(collect_funcs=functions, warmup_iters=2, max_iter=4),
        batches=4,
        device_train_microbatch_size=4,
    )
    keys = list(stats())
    assert {key.split('.')[1] for key in keys} == set(functions)
    assert [key for key in keys if '.forward.' in key] == [
        f'0.forward.{n}.{m}' for n in (3, 4) for m in ('start', 'end')
    ]
    third = keys[keys.index('0.training_step.3.start') : keys.index('0.training_step.3.end') + 1]
    assert third[-2] == '0.optimizer_step.3.end', 'the optimizer step ends with the batch'
    (one, other) = (stats()[f'0.{name}.3.end']['packed_bytes_diff'] for name in ('training_step', 'backward'))
    assert one > 0 and other == 0


def test_microbatches_of_a_batch_add_up() -> None:
    for microbatch in (8, 2):
        train(MemProfiler(overwrite=True), device_train_microbatch_size=microbatch)
        assert (
            stats()[KEYS[1]]['saved_bytes_diff'] == 8 * (16 * 0 + 32 + 1) * 4
        )  # the hidden layer's output, and the loss


def test_evaluation_is_read_inside_training_and_by_its_own_stage() -> None:
    train(MemProfiler(collect_funcs=['validation_step']), eval_dataloader=loader(3))
    assert list(stats()) == ['0.validation_step.2.start', '0.validation_step.2.end']
    trainer = make_trainer(MemProfiler(stages='eval', folder='alone'), eval_dataloader=loader(3))
    trainer.eval()
    trainer.close()
    assert list(stats('rank_0_memory_stats.eval0.yaml', Path('alone'))) == list(stats())


@pytest.mark.parametrize('method', ['__call__', 'forward'])
def test_host_memory_around_the_forward_pass_of_an_evaluation_is_read(method: str) -> None:
    class Evaluated(Regression):
        def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
            return getattr(self, method)(batch)

    train(MemProfiler(collect_funcs=['validation_step']), model=Evaluated(), eval_dataloader=loader(3))
    end = stats()['0.validation_step.2.end']
    assert 0 < end['rss_pre_forward'] == end['rss_post_forward'] - end['rss_diff']
    assert end['npp_pre_forward'] == end['npp_post_forward'] == end['npp_diff'] == 0


def test_with_a_schedule_all_calls_in_its_windows_are_read_each_with_files_of_its_own() -> None:
    train(MemProfiler(schedule={'skip': '2ba', 'active': '2ba', 'every': '4ba', 'repeat': 2}))
    steps = [
        {int(key.split('.')[2]) for key in stats(name)}
        for name in ('rank_0_memory_stats.yaml', 'rank_0_memory_stats.2.yaml')
    ]
    assert steps == [{3, 4}, {7, 8}]


def test_each_format_says_the_same() -> None:
    train(MemProfiler(dump_memorystats_pickle=True, dump_memorystats_jsonl=True))
    found = stats()
    assert pickle.loads((FOLDER / 'rank_0_memory_stats.pickle').read_bytes()) == found
    lines = json_lines(FOLDER / 'rank_0_memory_stats.jsonl')
    assert {line.pop('key'): line for line in lines} == found
    kinds = {entry.kind for entry in entries(FOLDER)}
    assert kinds == {'mem_profiler', 'mem_profiler.jsonl', 'mem_profiler.pickle'}


def test_whatever_a_hook_has_noted_comes_back_from_both_formats() -> None:
    values = {'small': 1e-05, 'none': None, 'yes': True, 'text': 'a: "b"\n\U0001f600', 'on': 3, 'much': float('inf')}
    assert yaml.safe_load(yaml_entry('0.f.1.start', values)) == {'0.f.1.start': values}
    assert json.loads(json_line('k', values)) == {'key': 'k', **values, 'much': 'inf'}


def peak_without_others(path: Path) -> dict[str, int]:
    """The peak by category, but for tensors that were there before: other tests have left some in this process."""
    document = json.loads(path.read_text())
    peak, others = document['peak']['cpu'], sum(each['peak_bytes'] for each in document['before'])
    return {**peak, 'Other': peak['Other'] - others, 'Total': peak['Total'] - others}


def test_memory_by_category_is_that_of_the_tracker() -> None:
    profiler = MemProfiler(track_fsdp_mem=True, fsdp_mem_tracker_units='B')
    train(profiler)
    train(FSDPMemTracker(schedule={'skip': '1ba', 'active': '1ba'}, folder='other'))
    (tracked,) = Path('other').glob('*[0-9].json')
    theirs = peak_without_others(tracked)
    peak = profiler.fsdp_memory_stats['training_step', 2]
    ours = peak_without_others(FOLDER / 'fsdp_mem_rank_0_training_step_2.json')
    # Composer allocates 4 bytes between the batch's start and its forward; the category depends on when recording starts.
    either = ('Activation', 'Other')
    assert sum(ours[name] for name in either) == sum(theirs[name] for name in either)
    assert all(ours[name] == theirs[name] for name in theirs if name not in either)
    assert stats('rank_0_fsdp_memory_stats.yaml') == {'0.training_step.2': peak}
    assert f'{peak["cpu"]["OptState"]}' in (FOLDER / 'fsdp_mem_rank_0_training_step_2.log').read_text()
    assert json.loads((FOLDER / 'fsdp_mem_rank_0_training_step_2.json').read_text())['peak'] == peak


def test_memory_by_category_of_a_call_within_another_is_that_of_the_call_alone() -> None:
    for functions in (['backward'], ['training_step', 'backward', 'optimizer_step']):
        profiler = MemProfiler(track_fsdp_mem=True, collect_funcs=functions, folder=str(len(functions)))
        train(profiler)
        assert {function for function, _ in profiler.fsdp_memory_stats} == set(functions)
        (log,) = Path(str(len(functions))).glob('fsdp_mem_rank_0_backward_2.json')
        if functions == ['backward']:
            alone = peak_without_others(log)
    assert peak_without_others(log) == alone
    step, update = (profiler.fsdp_memory_stats[name, 2]['cpu'] for name in ('training_step', 'optimizer_step'))
    assert step['Total'] >= update['Total'] and update['OptState'] == 2 * update['Parameter'] + 4 * 4


def test_what_was_read_is_there_after_a_crash() -> None:
    trainer = make_trainer(MemProfiler(max_iter=20))

    def fails(*_: Any) -> None:
        raise RuntimeError('boom')

    trainer.state.train_dataloader = loader(12)
    handle = trainer.state.model.register_forward_pre_hook(
        lambda *_: fails() if trainer.state.timestamp.batch.value == 3 else None
    )
    with pytest.raises(RuntimeError, match='boom'):
        trainer.fit()
    assert list(stats())[:4] == [f'0.training_step.{n}.{m}' for n in (2, 3) for m in ('start', 'end')]
    trainer.close()
    handle.remove()
    assert {entry.status for entry in entries(FOLDER)} == {'saved'}


def test_another_fit_after_one_that_broke_off_leaves_nothing_behind_and_counts_on() -> None:
    trainer = make_trainer(MemProfiler(max_iter=8, track_fsdp_mem=True), batches=4)
    model, failed = trainer.state.model, []

    def fail_once(*_: Any) -> None:
        if trainer.state.timestamp.batch.value == 2 and not failed:
            failed.append(True)
            raise RuntimeError('boom')

    handle = model.register_forward_pre_hook(fail_once)
    with pytest.raises(RuntimeError, match='boom'):
        trainer.fit()
    trainer.fit(duration='1ep')
    trainer.close()
    handle.remove()
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert not hooks_are_active()
    last = max(int(key.split('.')[2]) for path in FOLDER.glob('rank_0_memory*.yaml') for key in stats(path.name))
    assert last == trainer.state.timestamp.batch.value + 1, 'the failed batch counts as a call'


def test_what_can_not_be_written_ends_all_of_it() -> None:
    profiler = MemProfiler(max_iter=8)
    trainer = make_trainer(profiler, batches=8)
    hooked: list[bool] = []

    def look(*_: Any) -> None:
        hooked.append(hooks_are_active())
        if len(hooked) == 3:
            profiler._stats.take = None  # type: ignore[assignment]
            profiler._functions._take = None  # type: ignore[union-attr, assignment]

    handle = trainer.state.model.register_forward_pre_hook(look)
    with pytest.warns(MemprofWarning, match='stops reading memory'):
        trainer.fit()
    trainer.close()
    handle.remove()
    assert hooked == [False, True, True, *[False] * 5]
