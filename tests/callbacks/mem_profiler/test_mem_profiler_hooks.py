"""MemProfiler: a user's own hooks on modules."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
import torch

from composer_memprof import MemProfiler
from composer_memprof.messages import MemprofWarning
from tests.conftest import make_trainer, train
from tests.support.callbacks.mem_profiler import KEYS, stats


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
