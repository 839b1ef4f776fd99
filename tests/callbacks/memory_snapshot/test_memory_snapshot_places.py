"""MemorySnapshot: what is allocated is placed in its batch, phase, module and stage."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from composer_memprof import MemorySnapshot
from composer_memprof.analysis.memory.blocks.lifetimes import lifetimes
from composer_memprof.analysis.memory.categories.categories import CATEGORIES, categories
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.recorders.allocations.annotations import Annotations
from tests.conftest import Regression, loader, make_trainer, train
from tests.support.recordings.memory_snapshots import RUN, Tied


def test_what_is_allocated_is_placed_in_its_batch_phase_and_module() -> None:
    train(MemorySnapshot(), batches=5)
    snapshot = load_snapshot(RUN / 'rank0.4.memory_snapshot.pickle')
    (answer,) = report_on(snapshot).devices
    assert answer.peak.batch in (1, 2, 3)
    assert {'forward', 'backward', 'optimizer', 'dataloader'} <= set(snapshot.phases.names)
    assert set(snapshot.phases.batch.tolist()) <= {1, 2, 3, 4}
    assert {'net.0', 'net.2'} <= set(snapshot.modules)
    assert {'net.0.weight', 'net.0.bias', 'batch.0'} <= set(snapshot.tensors.names)
    history = snapshot.devices[0]
    outputs = (history.module == snapshot.modules.index('net.0')) & (history.size == 8 * 32 * 4)
    assert outputs.sum() >= 3, 'each batch of 8 gives 32 activations of 4 bytes each'


def test_a_summary_of_a_few_kilobytes_stands_beside_each_snapshot() -> None:
    train(MemorySnapshot(), batches=5)
    text = (RUN / 'rank0.4.memory_snapshot.summary.json').read_text()
    assert len(text) <= 4096
    (answer,) = report_on(load_snapshot(RUN / 'rank0.4.memory_snapshot.pickle')).devices
    assert json.loads(text)['devices'][0]['peak']['bytes'] == answer.peak.bytes


def test_module_marks_follow_nested_forwards_and_leave_no_hook() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU()))
    annotations = Annotations()
    annotations.follow_modules(model)
    model(torch.ones(1, 4))
    annotations.leave_modules()
    model(torch.ones(1, 4))
    assert [name for _, name in annotations.modules] == ['', '0', '', '1', '1.0', '1', '', '']
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(2 * self.a(x)) + x


def modules_marked(annotations: Annotations) -> list[str]:
    return [name for name, _ in itertools.groupby(name for _, name in annotations.modules)]


def test_module_marks_follow_the_backward_pass_and_leave_its_gradients_as_they_are() -> None:
    model = torch.nn.Sequential(Residual(), torch.nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    alone = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    annotations = Annotations()
    annotations.follow_modules(model)
    loss, later = (model(torch.ones(1, 4)).sum() for _ in range(2))
    annotations.mark('backward', 0)
    before = len(modules_marked(annotations))
    loss.backward()
    assert modules_marked(annotations)[before:] == ['1', '0', '0.b', '0', '0.a']
    assert all(torch.equal(one, parameter.grad) for one, parameter in zip(alone, model.parameters()))
    annotations.mark('optimizer', 0)
    assert modules_marked(annotations)[-1] == ''
    annotations.leave_modules()
    marks = len(annotations.modules)
    later.backward()
    assert len(annotations.modules) == marks


class Views(torch.nn.Module):
    """Hands a view of a tensor that was changed in place to a module, then uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.look = torch.nn.Linear(16, 16), torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        base = self.inner(x).clone()
        view = base[:, :8]
        base.mul_(1.3)
        self.look(view)
        return base.sin().sum() + base.exp().sum() + view.cos().sum()


def test_module_marks_do_not_look_at_what_would_change_the_order_of_a_gradients_sums() -> None:
    model, x = Views(), torch.randn(16, 16)
    model(x).backward()
    alone = model.inner.weight.grad
    model.zero_grad()
    annotations = Annotations()
    annotations.follow_modules(model)
    model(x).backward()
    assert alone is not None and model.inner.weight.grad is not None
    assert torch.equal(alone, model.inner.weight.grad)


class Peculiar(dict):
    def items(self) -> Any:
        raise NotImplementedError('not in training')


class ViewWithoutGrad(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.look = torch.nn.Linear(4, 4), torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> Any:
        made = self.inner(x).clone()
        with torch.no_grad():
            view = made[:1]
        made.mul_(2)
        self.look(view)
        return Peculiar(out=made)


def test_a_closed_callback_does_not_keep_its_trainer_alive() -> None:
    callback = MemorySnapshot(on_oom=True)
    trainer = train(callback, batches=2)
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None


def test_module_marks_raise_nothing_into_a_forward_and_keep_no_recording_alive() -> None:
    model = ViewWithoutGrad()
    annotations = Annotations()
    annotations.follow_modules(model)
    out = model(torch.ones(3, 4))['out']
    annotations.leave_modules()
    gone = weakref.ref(annotations)
    del annotations
    gc.collect()
    assert gone() is None
    out.sum().backward()


def test_after_a_checkpoint_has_run_its_forward_again_the_backward_is_where_it_was() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Checkpointed())
    annotations = Annotations()
    annotations.follow_modules(model)
    loss = model(torch.ones(1, 4)).sum()
    annotations.mark('backward', 0)
    before = len(modules_marked(annotations))
    loss.backward()
    marked = modules_marked(annotations)[before:]
    assert marked[:1] == ['1.inner.1'] and marked[-1] == '0', marked
    assert '1.inner.0' in marked


def test_a_compiled_model_is_not_hooked() -> None:
    model = torch.compile(torch.nn.Linear(2, 2))
    annotations = Annotations()
    annotations.follow_modules(torch.nn.Sequential(model))  # type: ignore[arg-type]
    assert annotations._hooks == []


def test_in_an_evaluation_the_peak_lies_in_its_forward_and_batches_are_its_own() -> None:
    model = Tied()
    snapshot_of_eval = MemorySnapshot(schedule={'skip': '1ba', 'active': '2ba'}, stages=['eval'])
    train(snapshot_of_eval, model=model, eval_dataloader=loader(4), batches=3)
    snapshot = load_snapshot(RUN / 'rank0.3.memory_snapshot.eval3.pickle')
    assert set(snapshot.phases.names) == {'eval', 'eval forward'}
    assert set(snapshot.phases.batch.tolist()) == {1, 2}
    (device,) = report_on(snapshot).devices
    assert device.peak.phase == 'eval forward'
    sizes = {share.category: share.bytes for share in device.peak.categories}
    assert sizes['parameter'] == sum(4 * parameter.numel() for parameter in model.parameters())
    assert sizes['input'] > 0


def test_so_it_does_in_a_prediction() -> None:
    trainer = make_trainer(MemorySnapshot(schedule={'active': '2ba'}, stages=['predict']))
    trainer.predict(loader(3), return_outputs=False)
    trainer.close()
    (path,) = RUN.glob('*.predict2.pickle')
    snapshot = load_snapshot(path)
    assert set(snapshot.phases.names) == {'predict', 'predict forward'}
    assert report_on(snapshot).devices[0].peak.phase == 'predict forward'


@pytest.mark.slow
@pytest.mark.parametrize('reentrant', [True, False])
def test_what_activation_checkpointing_computes_again_has_a_name_of_its_own(reentrant: bool) -> None:
    class Checkpointed(Regression):
        def forward(self, batch: Any) -> torch.Tensor:
            return checkpoint(self.net, batch[0].requires_grad_(), use_reentrant=reentrant)

    train(MemorySnapshot(), model=Checkpointed(), batches=5)
    snapshot = load_snapshot(RUN / 'rank0.4.memory_snapshot.pickle')
    (history,) = snapshot.devices
    blocks = lifetimes(history)
    found = categories(snapshot, history, blocks).category == CATEGORIES.index('recomputed_activation')
    after_relu = 8 * 32 * 4
    assert blocks.size[found].tolist().count(after_relu) == 3, 'one in each batch'
    assert blocks.size[found].sum() < 3 * (after_relu + 100), 'what is freed while it is computed again is temporary'


def test_a_forward_that_composer_has_compiled_is_left_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.forward = torch.compile(model.forward)  # type: ignore[method-assign]
    annotations = Annotations()
    annotations.follow_modules(model)
    assert annotations._hooks == []
