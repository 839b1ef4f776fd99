"""MemProfiler: functions of a user that are marked to be read."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_memprof import MemProfiler, memprofilable
from composer_memprof.guide import pages
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.functions import marked
from composer_memprof.recorders.functions.recorder import FunctionMemoryRecorder, Reading
from composer_memprof.recorders.functions.selection import select_functions
from composer_memprof.recorders.functions.sources import HostSource
from tests.conftest import Regression, train
from tests.support.callbacks.mem_profiler import KEYS, Marked, stats
from tests.support.processes import warm_python


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
    ran = warm_python.run([sys.executable, '-c', program], capture_output=True, text=True, check=False)
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
