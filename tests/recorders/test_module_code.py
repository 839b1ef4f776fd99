"""Stacks name modules by the code that runs, where no hook has noted which module it is."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import read_snapshot
from composer_memprof.recorders.modules.code import code_of_modules
from tests.support.recordings.snapshots import event, plain

MIB = 1 << 20


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.activate(self.up(inputs))

    def activate(self, inputs: torch.Tensor) -> torch.Tensor:
        return max([inputs], key=lambda each: each.sum())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.mlp(inputs)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = Mlp()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def frame(function: object, words: str) -> dict[str, object]:
    """The frame of the function's line that has these words."""
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    line = first + next(number for number, text in enumerate(lines) if words in text)
    return {'filename': __file__, 'line': line, 'name': getattr(function, '__name__', '?')}


LINEAR = {'filename': '/v/site-packages/torch/nn/modules/linear.py', 'line': 125, 'name': 'forward'}
IN_BLOCK = [frame(Block.forward, 'self.mlp'), frame(Model.forward, 'block(inputs)')]
IN_HEAD = [frame(Model.forward, 'self.head')]


def modules_of(*stacks: list[dict[str, object]]) -> dict[str, int]:
    """MiB by module of a recording with a block of 1 MiB for each stack."""
    events = [event('alloc', (number + 1) * MIB, MIB, stack, time=number) for number, stack in enumerate(stacks)]
    content = plain(*events, device='cuda', recorder='allocator_history', code=code_of_modules(Model()))
    (device,) = report_on(read_snapshot(content)).devices
    return {share.module: share.bytes // MIB for share in device.peak.modules}


def test_code_that_modules_share_is_told_apart_by_what_calls_it() -> None:
    forward, activate = frame(Mlp.forward, 'self.up'), frame(Mlp.activate, 'lambda')
    assert modules_of(
        [LINEAR, forward, *IN_BLOCK],
        [activate, frame(Mlp.forward, 'self.up'), *IN_BLOCK],
        [LINEAR, forward, *IN_HEAD],
        [IN_BLOCK[1]],
    ) == {'blocks.*.mlp': 2, 'head': 1, '': 1}


def test_a_module_that_cannot_be_told_is_not_named() -> None:
    outside = {'filename': '/me/train.py', 'line': 3, 'name': 'main'}
    assert modules_of([frame(Mlp.forward, 'self.up'), outside], [outside], []) == {'': 3}


def test_the_running_module_that_hooks_have_noted_is_the_modules_name() -> None:
    content = plain(
        event('alloc', MIB, MIB, [frame(Mlp.forward, 'self.up'), *IN_BLOCK], time=5),
        device='cuda',
        recorder='allocator_history',
        code=code_of_modules(Model()),
        modules=[[1, 'blocks.2.mlp.up']],
    )
    (device,) = report_on(read_snapshot(content)).devices
    assert [share.module for share in device.peak.modules] == ['blocks.2.mlp.up']
