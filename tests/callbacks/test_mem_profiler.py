"""MemProfiler: memory at the start and end of functions, in a Trainer and in a loop without one."""

from __future__ import annotations

import asyncio
import doctest
import gzip
import inspect
import json
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

from composer_memprof import FSDPMemTracker, MemProfiler, SavedTensorsHook, memprofilable
from composer_memprof.callbacks.mem_profiler import by_hand
from composer_memprof.guide import pages
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.functions import marked
from composer_memprof.recorders.functions.recorder import FunctionMemoryRecorder, Reading
from composer_memprof.recorders.functions.selection import select_functions
from composer_memprof.recorders.functions.sources import HostSource
from composer_memprof.recorders.torch_private.saved_tensor_hooks import hooks_are_active
from composer_memprof.report.text.tables.function_memory import json_line, yaml_entry
from tests.conftest import Regression, child_environment, entries, json_lines, loader, make_trainer, train

FOLDER = Path('test-run/memprof')
KEYS = ['0.training_step.2.start', '0.training_step.2.end']


def stats(name: str = 'rank_0_memory_stats.yaml', folder: Path = FOLDER) -> dict[str, Any]:
    return yaml.safe_load((folder / name).read_text())


class Marked(Regression):
    """A model whose loss calls a marked method."""

    @memprofilable
    def score(self, outputs: Any, batch: Any) -> torch.Tensor:
        return super().loss(outputs, batch)

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        return self.score(outputs, batch)


# -- what is read -----------------------------------------------------------------------------------------------------


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


# -- the user's hooks -------------------------------------------------------------------------------------------------


def note_before(module: Any, args: Any) -> None:
    module.calls = getattr(module, 'calls', 0) + 1
    module.was_small = module.mem_info_handle().rss < psutil.virtual_memory().total


def forget(model: torch.nn.Module, attributes: list[str]) -> None:
    for module in model.modules():
        for name in attributes:
            setattr(module, name, 0)


HERE = __name__


def test_hooks_by_dotted_path_are_in_every_module_and_gone_afterwards() -> None:
    hooks = {'pre_forward_hooks': [f'{HERE}.note_before'], 'reset_state_hooks': [f'{HERE}.forget']}
    trainer = train(
        MemProfiler(
            memory_hooks=hooks,
            save_hook_attrs=['calls', 'was_small'],
            saved_tensors_funcs=['torch.clone', 'identity_lambda'],
        )
    )
    end = stats()[KEYS[1]]
    assert (end['calls'], end['was_small']) == (1, True)
    assert end['packed_bytes_diff'] > 0
    for module in trainer.state.model.modules():
        assert not module._forward_pre_hooks and not module._forward_hooks
        assert not {'calls', 'was_small', 'mem_info_handle'} & set(vars(module))


def test_a_hook_that_fails_does_not_reach_the_training() -> None:
    def reset(*_: Any) -> None:
        raise RuntimeError('boom')

    with pytest.warns(MemprofWarning, match='continues without memory_hooks: RuntimeError: boom'):
        train(MemProfiler(memory_hooks={'reset_state_hooks': [reset]}))
    assert list(stats()) == KEYS


@pytest.mark.parametrize('kind', ['pre_forward_hooks', 'post_forward_hooks'])
def test_what_a_users_hook_raises_or_returns_does_not_reach_the_training(kind: str) -> None:
    def returns(*_: Any) -> Any:
        return torch.full((8, 1), float('nan'))

    def fails(*_: Any) -> None:
        raise RuntimeError('boom')

    trainer = train(MemProfiler(memory_hooks={kind: [returns]}))
    assert all(parameter.isfinite().all() for parameter in trainer.state.model.parameters())
    with pytest.warns(MemprofWarning, match='continues without memory_hooks: RuntimeError: boom'):
        train(MemProfiler(memory_hooks={kind: [fails]}))


def test_hooks_go_once_the_functions_that_retain_them_are_done() -> None:
    trainer = make_trainer(MemProfiler(max_iter=3))
    seen: list[bool] = []
    trainer.state.model.net.register_forward_hook(lambda *_: seen.append(bool(trainer.state.model._forward_hooks)))
    trainer.fit()
    trainer.close()
    assert seen == [False, True, True, *[False] * 9]


# -- marked functions -------------------------------------------------------------------------------------------------


def test_readings_within_a_call_leave_its_own_as_they_are() -> None:
    class Inner(Regression):
        @memprofilable
        def hidden(self, batch: Any) -> torch.Tensor:
            return self.net(batch[0])

        def forward(self, batch: Any) -> torch.Tensor:
            return self.hidden(batch)

    train(MemProfiler(), model=Inner())
    end, inner = stats()[KEYS[1]], stats()['0.hidden.2.end']
    assert end['rss_diff'] == end['rss_post_forward'] - end['rss_pre_forward'] < 100 << 20
    assert 'rss_diff' not in inner and inner['packed_bytes_diff'] > inner['npp_diff'] == 0


def test_a_marked_method_is_read_without_being_named_and_only_then() -> None:
    train(MemProfiler(), model=Marked())
    assert {key.split('.')[1] for key in stats()} == {'training_step', 'score'}
    train(MemProfiler(collect_funcs=['training_step'], folder='named'), model=Marked())
    assert {key.split('.')[1] for key in stats(folder=Path('named'))} == {'training_step'}
    assert marked._listeners == ()


class Listens:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def begin(self, name: str) -> str:
        self.heard.append(f'+{name}')
        return name

    def end(self, call: str) -> None:
        self.heard.append(f'-{call}')


@pytest.fixture
def listener() -> Any:
    listener = Listens()
    marked.connect(listener)
    yield listener
    marked.disconnect(listener)


class Tokens(torch.utils.data.Dataset):
    """Samples made by a marked function, as they are loaded."""

    def __len__(self) -> int:
        return 32

    @memprofilable('tokenize')
    def __getitem__(self, index: int) -> Any:
        return torch.full((16,), float(index)), torch.ones(1)


@pytest.mark.parametrize('settings', [{}, {'schedule': {'skip': '1ba', 'active': '1ba'}}])
def test_a_marked_function_that_loads_the_data_of_a_windows_first_batch_is_read(settings: dict[str, Any]) -> None:
    train(MemProfiler(**settings), train_dataloader=torch.utils.data.DataLoader(Tokens(), batch_size=8))
    calls = [int(key.split('.')[2]) for key in stats() if '.tokenize.' in key and key.endswith('start')]
    assert calls == ([*range(9, 17)] if settings else [2])


def test_the_example_in_the_guide_reads_its_marked_function() -> None:
    (text,) = (page.text for page in pages() if page.name == 'own-functions')
    (example,) = [block for block in re.findall(r'```python\n(.*?)```', text, re.S) if 'def tokenize' in block]
    found: dict[str, Any] = {}
    exec(example, found)
    assert {'0.tokenize.2.start', '0.tokenize.4.end', '0.training_step.2.end'} <= set(found['profiler'].memory_stats)


LEFT_UNFINISHED = """
import asyncio
from composer_memprof import memprofilable
from composer_memprof.recorders.functions import marked

class Listens:
    def begin(self, name): return name
    def end(self, call): pass

if {listened}:
    marked.connect(Listens())

@memprofilable
async def numbers():
    try:
        for number in range(5):
            await asyncio.sleep(0)
            yield number
    finally:
        await asyncio.sleep(0)

kept = []

async def leave():
    async for number in numbers():
        break

async def keep():
    kept.append(numbers())
    await kept[0].__anext__()

asyncio.run({function}())
"""


@pytest.mark.parametrize('function', ['leave', 'keep'])
@pytest.mark.parametrize('listened', [False, True])
def test_an_asynchronous_generator_left_unfinished_leaves_nothing_on_stderr(function: str, listened: bool) -> None:
    program = LEFT_UNFINISHED.format(function=function, listened=listened)
    ran = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False)
    assert (ran.stderr, ran.returncode) == ('', 0)


def test_a_mark_whose_last_call_was_read_is_listened_to_no_more() -> None:
    @memprofilable
    def read() -> bool:
        return bool(name_of(read).listeners)

    @memprofilable
    def not_selected() -> None:
        pass

    def name_of(function: Any) -> Any:
        return marked._names[function.__name__]

    profiler = MemProfiler(save_dir='here', collect_funcs=['read'], max_iter=3).connect(torch.nn.Linear(1, 1))
    assert name_of(not_selected).listeners
    not_selected()
    assert not name_of(not_selected).listeners
    assert [read() for _ in range(5)] == [True, True, False, False, False]
    profiler.disconnect()
    assert list(stats(folder=Path('here')))[-1] == '0.read.3.end'


def test_marks_may_be_nested_recursive_and_of_every_kind_of_function(listener: Listens) -> None:
    @memprofilable
    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n > 1 else 1

    @memprofilable('words')
    def items() -> Any:
        yield 'a'

    @memprofilable
    async def waits() -> int:
        await asyncio.sleep(0)
        return 3

    class Has:
        @memprofilable
        @staticmethod
        def still() -> int:
            return 1

        @memprofilable
        @classmethod
        def of(cls) -> type:
            return cls

    assert factorial(2) == 2
    assert listener.heard == ['+factorial', '+factorial', '-factorial', '-factorial']
    assert (list(items()), asyncio.run(waits()), Has.still(), Has().of()) == (['a'], 3, 1, Has)
    again = memprofilable('again')
    with again, again:
        listener.heard.append('inside')
    assert listener.heard[4:] == [
        *('+words', '-words', '+words', '-words'),  # one call per step
        *('+waits', '-waits', '+waits', '-waits', '+still', '-still', '+of', '-of'),
        *('+again', '+again', 'inside', '-again', '-again'),
    ]


def test_steps_of_asynchronous_generators_are_followed_and_tasks_may_overlap() -> None:
    @memprofilable
    async def numbers() -> Any:
        sent = yield 1
        yield sent

    weights = torch.nn.Linear(4, 4)

    async def task(name: str) -> None:
        with memprofilable(name):
            kept = weights(torch.ones(1, 4)).pow(2)
            await asyncio.sleep(0)
            del kept

    async def main() -> list[Any]:
        generator = numbers()
        found = [await generator.__anext__(), await generator.asend(5)]
        await asyncio.gather(task('one'), task('other'))
        return found

    profiler = MemProfiler(warmup_iters=0, save_dir='here').connect(weights)
    assert asyncio.run(main()) == [1, 5]
    profiler.disconnect()
    found = stats(folder=Path('here'))
    assert {'0.numbers.1.end', '0.one.1.end', '0.other.1.end'} <= set(found)
    assert found['0.one.1.end']['packed_bytes_diff'] > 0
    assert all(values['packed_bytes_diff'] >= 0 for values in found.values())
    assert not weights._forward_hooks


@pytest.mark.parametrize('mark', [lambda function: function, memprofilable], ids=['unmarked', 'marked'])
def test_a_task_can_be_made_of_a_step_of_an_asynchronous_generator(mark: Any) -> None:
    @mark
    async def numbers() -> Any:
        try:
            await asyncio.sleep(0)
            sent = yield 1
            yield sent
        except KeyError:
            yield 3

    async def main() -> list[Any]:
        generator = numbers()
        steps = [
            generator.__anext__,
            lambda: generator.asend(2),
            lambda: generator.athrow(KeyError()),
            generator.aclose,
        ]
        found = [await asyncio.create_task(step()) for step in steps]
        step = numbers().__anext__()
        assert isinstance(step, Coroutine)
        found.append(await asyncio.wait_for(step, timeout=60))
        with pytest.raises(RuntimeError, match='cannot reuse already awaited'):
            await step
        return found

    assert asyncio.run(main()) == [1, 2, 3, None, 1]
    assert inspect.isasyncgenfunction(inspect.unwrap(numbers))


def test_a_class_is_not_marked() -> None:
    with pytest.raises(TypeError, match='mark those of the class'):
        memprofilable(Regression)


def test_a_marked_function_named_as_a_part_of_the_training_is_left_out_with_a_word() -> None:
    class Confusing(Regression):
        @memprofilable
        def forward(self, batch: Any) -> Any:
            return super().forward(batch)

    with pytest.warns(MemprofWarning, match="does not read the marked function 'forward'"):
        train(MemProfiler(collect_funcs=['forward']), model=Confusing())
    assert list(stats()) == ['0.forward.2.start', '0.forward.2.end']


def test_a_hook_that_is_a_marked_function_does_not_lock() -> None:
    def reset(*_: Any) -> None:
        with memprofilable('resetting'):
            pass

    train(MemProfiler(memory_hooks={'reset_state_hooks': [reset]}))
    assert KEYS[0] in stats()


def test_an_exception_passes_through_a_mark_and_ends_it(listener: Listens) -> None:
    with pytest.raises(KeyError, match='mine'), memprofilable('fails'):
        raise KeyError('mine')
    assert listener.heard == ['+fails', '-fails']


def test_marked_functions_on_other_threads_are_counted_each_once() -> None:
    taken: list[Reading] = []
    recorder = FunctionMemoryRecorder(select_functions(None, None, ()), {'cpu': HostSource()}, taken.append)

    def work() -> None:
        for _ in range(50):
            recorder.end(recorder.begin('work'))

    threads = [threading.Thread(target=work) for _ in range(4)]
    with recorder:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    keys = [reading.key(0) for reading in taken]
    assert len(set(keys)) == len(keys) == 400


def test_a_worker_process_of_the_dataloader_reads_nothing() -> None:
    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 32

        @memprofilable
        def __getitem__(self, index: int) -> Any:
            return torch.ones(16), torch.ones(1)

    train(MemProfiler(), train_dataloader=torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1))
    assert list(stats()) == KEYS


# -- without a Trainer ------------------------------------------------------------------------------------------------


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
    ran = subprocess.run(
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


# -- the training comes first -----------------------------------------------------------------------------------------


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
