"""Flops: compiled models and functions are counted, and their training is not changed."""

from __future__ import annotations

import functools
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from composer_memprof import Flops, SavedTensorsHook
from composer_memprof.callbacks.flops import count_apart
from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.flops.without_data import backward, count_without_data
from tests.conftest import FEATURES, Regression, loader, make_trainer, train
from tests.support.callbacks.flops import (
    HEADS,
    LAYER_1,
    LAYER_2,
    LAYERS,
    LENGTH,
    REGRESSION,
    WIDTH,
    Logged,
    count,
    gpt,
    gpt_flops,
    only,
    texts,
    train_gpt,
    written,
)

counts_compiled = pytest.mark.skipif(torch.cuda.is_available(), reason='beside a GPU compiled models are only timed')


@counts_compiled
@pytest.mark.parametrize('how', ['whole', 'in place', 'in part'])
def test_a_compiled_model_is_counted_without_running_it_uncompiled(how: str) -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    model = gpt()
    settings: dict[str, Any] = {}
    if how == 'whole':
        settings['compile_config'] = {'backend': backend}
    elif how == 'in place':
        model.blocks[0].compile(backend=backend)
    else:
        model.blocks[1] = torch.compile(model.blocks[1], backend=backend)
    logged = Logged()
    train(Flops(), model=model, train_dataloader=texts([LENGTH] * 4), batches=4, loggers=[logged], **settings)
    data, expected = only(), gpt_flops()
    assert (data['forward_flops'], data['backward_flops']) == (expected['forward'], expected['backward'])
    assert data['recomputed_flops'] == expected['again']
    assert {row['name']: row['forward_flops'] for row in data['modules']}['blocks.1.up'] == expected['up']
    assert (data['batches']['traced'], data['batches']['timed'], data['notes']) == (1, 3, [])
    assert logged.of('flops/mfu') and data['formula']['batch_flops'] == pytest.approx(data['batch_flops'], rel=0.05)
    once = len(compiled)
    compiled.clear()
    torch._dynamo.reset()
    train(model=_compiled_like(how, backend), train_dataloader=texts([LENGTH] * 4), batches=4, **settings)
    assert len(compiled) == once, 'as often as without it'


def _compiled_like(how: str, backend: Any) -> ByteGPT:
    model = gpt()
    if how == 'in place':
        model.blocks[0].compile(backend=backend)
    elif how == 'in part':
        model.blocks[1] = torch.compile(model.blocks[1], backend=backend)
    return model


class Random(Regression):
    """Draws random numbers, has statistics, and counts its calls, in three libraries' ways."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 1))
        self.calls = 0

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        self.calls += 1
        return super().loss(outputs, batch) * (1 + random.random() + np.random.random() + self.calls)


@counts_compiled
def test_counting_a_compiled_model_changes_no_number_of_its_training() -> None:
    def run(*callbacks: Any) -> tuple[dict[int, float], list[Tensor]]:
        torch._dynamo.reset()
        torch.manual_seed(1)
        logged, model = Logged(), Random()
        hooked: list[type] = []
        model.net[0].register_forward_hook(lambda module, inputs, output: hooked.append(type(output)))
        train(*callbacks, model=model, loggers=[logged], compile_config={'backend': 'aot_eager'}, batches=6)
        assert set(hooked) <= {Tensor}, 'the copy has no hooks of the user'
        return logged.of('loss/train/total'), [*model.parameters(), *model.buffers()]

    bare, watched = run(), run(Flops(stages=['train', 'eval']))
    assert only()['batch_flops'] == REGRESSION
    assert watched[0] == bare[0]
    assert all(map(torch.equal, watched[1], bare[1]))


@functools.lru_cache
def _cached_table(length: int) -> Tensor:
    return torch.arange(length).float().outer(torch.ones(FEATURES)) / length


_TABLES: dict[int, Tensor] = {}
_OUTPUTS: list[Tensor] = []


@torch.compiler.disable
def _keep_tensors(inputs: Tensor) -> Tensor:
    length = inputs.shape[0]
    if length not in _TABLES:
        _TABLES[length] = _cached_table(length) * 2
    _OUTPUTS.append(inputs.detach())
    return _TABLES[length] + _cached_table(length)


class Keeping(Regression):
    """Keeps tensors outside of itself, as rotary tables are kept, and prints."""

    def forward(self, batch: Any) -> Any:
        print('forward')
        return self.net(batch[0] + _keep_tensors(batch[0]))


@counts_compiled
@pytest.mark.parametrize('part', [True, False])
def test_tensors_that_a_compiled_model_keeps_anywhere_are_those_of_the_training(
    part: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(*callbacks: Any) -> tuple[dict[int, float], list[Tensor], int]:
        torch._dynamo.reset()
        _cached_table.cache_clear()
        _TABLES.clear()
        _OUTPUTS.clear()
        torch.manual_seed(1)
        capfd.readouterr()
        logged, model = Logged(), Keeping()
        if part:
            model.net.compile(backend='eager')
        train(
            *callbacks, model=model, loggers=[logged], batches=4,
            compile_config=None if part else {'backend': 'eager'},
        )  # fmt: skip
        assert {type(kept) for kept in [*_TABLES.values(), *_OUTPUTS, _cached_table(8)]} == {Tensor}
        assert len(_OUTPUTS) == 4
        return logged.of('loss/train/total'), list(model.parameters()), capfd.readouterr().out.count('forward')

    bare, watched = run(), run(Flops())
    assert only()['batch_flops'] == REGRESSION
    assert watched[0] == bare[0]
    assert all(map(torch.equal, watched[1], bare[1]))
    assert watched[2] == bare[2], 'the copy prints nothing'


def test_no_tensor_of_a_model_is_copied_to_count_it() -> None:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)
            self.teacher = {'logits': torch.ones(3, 4), 'more': [nn.Parameter(torch.ones(4))]}

        def forward(self, inputs: Tensor) -> Any:
            held = [self.teacher['logits'], *self.teacher['more']]
            assert not any(type(each) in (Tensor, nn.Parameter) and each.device.type == 'cpu' for each in held)
            seen.extend(tuple(each.shape) for each in held)
            return self.net(inputs + held[0] + held[1])

    seen: list[tuple[int, ...]] = []
    model = Holding()
    found = count_without_data(model, torch.ones(3, 4), lambda twin, batch: backward(twin, twin(batch).sum()))
    assert found.forward_flops == 2 * 3 * 4 * 2
    assert seen == [(3, 4), (4,)]
    assert model.teacher['logits'].sum() == 12


class Stuck(Regression):
    """Stops where its tensors have no data, after it has called ``first``."""

    first: Callable[[], Any] = staticmethod(lambda: None)

    def forward(self, batch: Any) -> Any:
        if type(batch[0]) is not Tensor:
            self.first()
            while True:
                signal.pause()
        return super().forward(batch)


def stuck() -> Stuck:
    model = Stuck()
    model.net.compile(backend='eager')
    return model


@pytest.mark.slow
@counts_compiled
def test_a_count_that_does_not_end_is_ended_and_the_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = Path('pid')
    monkeypatch.setattr(Stuck, 'first', staticmethod(lambda: pid.write_text(str(os.getpid()))))
    monkeypatch.setattr(count_apart, 'TIMEOUT_S', 5.0)
    with pytest.warns(MemprofWarning, match='gave no result within 5 seconds.*compile_config=None'):
        train(Flops(), model=stuck(), batches=3)
    data = only()
    assert data['batch_flops'] is None and data['batches']['timed'] == 2
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@counts_compiled
def test_a_signal_ends_a_count_and_reaches_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    training = os.getpid()
    monkeypatch.setattr(Stuck, 'first', staticmethod(lambda: os.kill(training, signal.SIGINT)))
    monkeypatch.setattr(count_apart, 'TIMEOUT_S', 3600.0)
    trainer = make_trainer(Flops(), model=stuck(), batches=3)
    with pytest.warns(MemprofWarning, match='a signal ended the process'), pytest.raises(SystemExit):
        trainer.fit()
    trainer.close()


def test_a_compiled_model_on_a_device_is_only_timed() -> None:
    with pytest.raises(count_apart.CountError, match='torch cannot compute beside a GPU'):
        count_apart.count_apart(nn.Linear(4, 2, device='meta'), torch.ones(3, 4), lambda model, batch: model(batch))


@counts_compiled
def test_other_recorders_do_not_see_the_copy_of_a_compiled_model() -> None:
    first = {'active': '1ba'}
    train_gpt(Flops(), SavedTensorsHook(schedule=first), compile_config={'backend': 'aot_eager'})
    (with_flops,) = written('*saved_tensors*.json')
    torch._dynamo.reset()
    train_gpt(SavedTensorsHook(schedule=first, folder='alone'), compile_config={'backend': 'aot_eager'})
    (alone,) = written('*saved_tensors*.json', folder=Path('alone'))
    assert with_flops['total_bytes'] == alone['total_bytes']


@counts_compiled
def test_a_compiled_models_evaluation_is_counted_too() -> None:
    train(Flops(stages=['eval']), batches=2, eval_dataloader=loader(3), compile_config={'backend': 'aot_eager'})
    assert {data['batch_flops'] for data in written()} == {LAYER_1 + LAYER_2}


@counts_compiled
def test_a_compiled_model_that_reads_its_tensors_is_timed_and_the_reason_is_said() -> None:
    class Reads(ByteGPT):
        def loss(self, outputs: Any, batch: Any) -> Tensor:
            loss = super().loss(outputs, batch)
            return loss * 2 if loss.item() > 0 else loss

    torch.manual_seed(3)
    model = Reads(d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_seq_len=64)
    logged = Logged()
    with pytest.warns(MemprofWarning, match='no uncompiled copy of it could be counted.*compile_config=None'):
        train(
            Flops(), model=model, train_dataloader=texts([LENGTH] * 4), loggers=[logged],
            compile_config={'backend': 'aot_eager'},
        )  # fmt: skip
    data = only()
    assert data['batch_flops'] is None and data['mfu'] is None and data['modules'] is None
    assert data['batches']['timed'] == 3
    assert data['formula']['batch_flops'] == 3 * gpt_flops()['forward'], "its weights are the formula's"
    assert logged.of('flops/mfu_from_formula') and not logged.of('flops/mfu')
    assert 'torch.compile' in Path('test-run/memprof/rank0.4.flops.txt').read_text()


def test_a_compiled_function_is_compiled_before_the_trace_and_used_in_it() -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    class WithFunction(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.function = torch.compile(lambda x: (x @ x.T).sum(), backend=backend)

        def loss(self, outputs: Any, batch: Any) -> Tensor:
            return super().loss(outputs, batch) + self.function(outputs) * 1e-3

    model = WithFunction()
    train(Flops(), model=model, batches=4)
    (shape,) = only()['batches']['shapes']
    assert shape['traced_at'] == 2
    assert len(compiled) == 1


def test_a_function_first_called_in_a_trace_is_compiled_afterwards() -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    function = torch.compile(lambda x: (x @ x).sin(), backend=backend)
    result = count(nn.Identity(), lambda: function(torch.ones(3, 3)))
    assert result.batch_flops == 2 * 27
    assert not compiled
    function(torch.ones(3, 3))
    assert len(compiled) == 1
