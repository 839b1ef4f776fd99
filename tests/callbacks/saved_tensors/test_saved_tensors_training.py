"""SavedTensorsHook: training is not changed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from composer.core import Callback, State
from composer.loggers import Logger
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from composer_memprof import SavedTensorsHook
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder
from tests.conftest import train
from tests.support.callbacks.saved_tensors import assert_bare

SOON = {'skip': '1ba', 'active': '1ba'}


def test_gradients_are_bit_identical() -> None:
    def gradients(recorded: bool) -> list[Tensor]:
        torch.manual_seed(3)
        model = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        x = torch.randn(2, 7, 32)
        recorder = SavedTensorsRecorder(model)
        if recorded:
            recorder.begin()
        first = torch.autograd.grad(model(x).pow(2).sum(), list(model.parameters()), create_graph=True)
        torch.stack([gradient.pow(2).sum() for gradient in first]).sum().backward()
        if recorded:
            recorder.end()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    bare, recorded = gradients(False), gradients(True)
    assert len(bare) == len(recorded) > 0
    assert all(torch.equal(one, other) for one, other in zip(bare, recorded))


@pytest.mark.parametrize('what', ['activation', 'output', 'parameter'])
def test_modification_in_place_is_an_error_as_without_hooks(what: str) -> None:
    model = nn.Linear(4, 4)

    def run() -> None:
        x = torch.randn(2, 4, requires_grad=True)
        hidden = model(x)
        result = (hidden.exp() if what == 'output' else hidden * hidden) if what != 'parameter' else model(hidden)
        with torch.no_grad():
            {'activation': hidden, 'output': result, 'parameter': model.weight}[what].add_(1)
        result.sum().backward()

    for recorder in (nullcontext(), SavedTensorsRecorder(model)):
        with pytest.raises(RuntimeError, match=r'modified by an inplace operation: .* expected version'), recorder:
            run()


def test_dropped_graphs_free_their_memory() -> None:
    model = nn.Linear(4, 4)
    recorder = SavedTensorsRecorder(model)
    with recorder:
        output = model(torch.randn(2, 4)).exp()
        storage = StorageWeakRef(output.untyped_storage())
        assert not storage.expired()
        del output
        assert storage.expired(), 'without the garbage collector'
    assert recorder.result()().left_bytes == 0


def test_an_error_in_a_hook_does_not_reach_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from composer_memprof.recorders.saved_tensors.ledger import Ledger

    def fail(*args: Any) -> Any:
        raise RuntimeError('a bug of ours')

    for method in ('_add_storage', 'note_arguments'):
        monkeypatch.setattr(Ledger, method, fail)
        with pytest.warns(MemprofWarning, match='is disabled.*a bug of ours'):
            trainer = train(SavedTensorsHook(schedule=SOON), batches=4)
        assert trainer.state.timestamp.batch.value == 4


def test_an_exception_of_the_training_passes_through_and_no_hooks_are_left() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    recorder = SavedTensorsRecorder(model)
    with pytest.raises(RuntimeError, match='shapes cannot be multiplied'), recorder:
        model(torch.randn(2, 4))
    assert_bare(model)


def test_after_the_window_the_model_is_as_it_was() -> None:
    class Look(Callback):
        looked = 0

        def batch_start(self, state: State, logger: Logger) -> None:
            if state.timestamp.batch.value == 3:
                assert_bare(state.model)
                self.looked += 1

    look = Look()
    train(SavedTensorsHook(schedule=SOON), look, batches=5)
    assert look.looked == 1
