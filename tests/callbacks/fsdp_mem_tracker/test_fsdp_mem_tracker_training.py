"""FSDPMemTracker: training is not changed, and what cannot be recorded is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, is_in_torch_dispatch_mode

from composer_memprof import FSDPMemTracker
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.modules.recorder import ModuleMemoryRecorder
from tests.conftest import FEATURES, Regression, entries, make_trainer, train
from tests.support.callbacks.module_memory import SOON, LiveStorages


@pytest.mark.parametrize('microbatch', [8, 2])
def test_losses_and_weights_are_bit_identical_with_every_batch_recorded(microbatch: int) -> None:
    results = []
    for callbacks in ([], [FSDPMemTracker(schedule={'active': '99ba'})]):
        trainer = make_trainer(*callbacks, device_train_microbatch_size=microbatch)
        trainer.fit()
        results.append([p.detach().clone() for p in trainer.state.model.parameters()])
        trainer.close()
    assert all(torch.equal(bare, tracked) for bare, tracked in zip(*results))


@pytest.mark.parametrize('method', ['operated', 'entered', 'left'])
def test_an_error_of_the_recorder_does_not_reach_the_training(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = [p.detach().clone() for p in train().state.model.parameters()]

    def fail(*args: Any) -> None:
        raise RuntimeError('a bug of ours')

    monkeypatch.setattr(ModuleMemoryRecorder, method, fail)
    with pytest.warns(MemprofWarning, match='a bug of ours') as caught:
        trainer = train(FSDPMemTracker(schedule=SOON))
    assert sum('is disabled' in str(warning.message) for warning in caught) == 1
    assert all(torch.equal(a, b) for a, b in zip(bare, trainer.state.model.parameters()))
    assert nothing_is_left()


def nothing_is_left() -> bool:
    modules = torch.nn.modules.module
    return (
        not _get_current_dispatch_mode_stack()
        and torch.UntypedStorage.resize_ is torch._C.StorageBase.resize_
        and not modules._global_forward_hooks
        and not modules._global_forward_pre_hooks
    )


def test_no_hooks_are_left_in_torch_or_the_model_after_a_window() -> None:
    model = Regression()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    hooks = [parameter._backward_hooks for parameter in model.parameters()]
    recorder = ModuleMemoryRecorder(model)
    with recorder:
        model((torch.ones(2, FEATURES), None)).sum().backward()
        assert not nothing_is_left()
    assert nothing_is_left()
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert [parameter._backward_hooks for parameter in model.parameters()] == hooks


def test_an_exception_of_the_training_passes_through_and_no_hooks_are_left() -> None:
    model = Regression()
    with pytest.raises(ZeroDivisionError), ModuleMemoryRecorder(model):
        model((torch.ones(2, FEATURES), None))
        raise ZeroDivisionError
    assert nothing_is_left()


def test_recorders_and_other_modes_can_start_and_end_in_any_order() -> None:
    model = nn.Linear(4, 4)
    first, second, other = ModuleMemoryRecorder(model), ModuleMemoryRecorder(model), LiveStorages()
    first.start()
    other.__enter__()
    second.start()
    model(torch.ones(2, 4)).sum().backward()
    first.stop()
    second.stop()
    assert _get_current_dispatch_mode_stack() == [other]
    other.__exit__(None, None, None)
    assert nothing_is_left()
    assert first.result is not None and second.result is not None
    assert first.result.end['cpu']['Gradient'] == second.result.end['cpu']['Gradient'] == 80


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'depth': 0}, ['depth must be a number of levels', 'not 0']),
        ({'units': 'MB'}, ["units='MB'", 'MiB']),
        ({'tabulate': 'no'}, ['tabulate must be true or false', "not 'no'"]),
        ({'root_module': 3}, ['root_module must be the dotted name of a module', 'not 3']),
        ({'filename': '{functon}'}, ['filename', '{functon}']),
    ],
)
def test_a_wrong_parameter_is_refused_at_construction(arguments: Mapping[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        FSDPMemTracker(**arguments)
    assert all(word in str(caught.value) for word in words) and '\n' not in str(caught.value)


def test_an_unknown_root_module_is_refused_with_the_names_of_modules() -> None:
    with pytest.raises(ValueError, match=r"root_module='nett' is not in the model, a Regression; .*net, net\.0"):
        make_trainer(FSDPMemTracker(root_module='nett'))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match='has no parameters'):
        ModuleMemoryRecorder(nn.ReLU())


def test_fsdp1_is_refused_and_the_message_names_fsdp2(monkeypatch: pytest.MonkeyPatch) -> None:
    import composer.core.state

    monkeypatch.setattr(composer.core.state.State, 'fsdp_config_version', 1)
    with pytest.raises(ValueError, match='FSDP_VERSION=2'):
        make_trainer(FSDPMemTracker())


def test_an_active_tracker_of_torch_is_refused_before_training_and_disables_ours_during_it() -> None:
    from torch.distributed._tools.mem_tracker import MemTracker

    trainer = make_trainer(FSDPMemTracker(schedule=SOON))
    with MemTracker(), pytest.raises(ValueError, match='another tracker is active'):
        trainer.fit()
    trainer.close()
    with MemTracker(), pytest.raises(RuntimeError, match='another tracker is active'):
        ModuleMemoryRecorder(nn.Linear(2, 2)).start()
    assert nothing_is_left()


def test_a_compiled_model_is_not_recorded_and_warned_of_once() -> None:
    with pytest.warns(MemprofWarning, match=r'torch\.compile'):
        trainer = train(FSDPMemTracker(schedule=SOON), compile_config={'backend': 'eager'})
    assert trainer.state.timestamp.batch.value == 12
    assert entries(Path('test-run')) == []


def test_torch_compile_works_after_a_tracker_entered_later_ends_later_than_ours() -> None:
    class Other(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    ours = ModuleMemoryRecorder(torch.nn.Linear(2, 2))
    other = Other()
    ours.start()
    other.__enter__()
    ours.stop()
    other.__exit__(None, None, None)
    assert not is_in_torch_dispatch_mode()
