"""The cost of SavedTensorsHook's recorder: a step in its window, and one after it."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Optional

import psutil
import torch

from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder
from tests.benchmarks.figures import Report


def saved_tensors(rounds: int, report: Report) -> None:
    """Forward and backward of an 8-block transformer. Setting and removing hooks is part of the time."""
    torch.manual_seed(0)
    model = ByteGPT(d_model=192, n_layers=8, max_seq_len=128)
    ids = torch.randint(0, 256, (8, 129))
    batch = {'input_ids': ids[:, :-1], 'labels': ids[:, 1:]}
    detach = torch.autograd.graph.saved_tensors_hooks
    make: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        'bare': nullcontext,
        'detach': lambda: detach(lambda tensor: tensor.detach(), lambda tensor: tensor),
        'ours': lambda: SavedTensorsRecorder(model),
        'after': nullcontext,
    }
    theirs = _finetuning_scheduler(model)
    if theirs is not None:
        make['theirs'] = theirs
    taken: dict[str, list[float]] = {name: [] for name in make}
    for number in range(rounds * 6 + 2):
        # 'after' always follows 'ours'; the others alternate
        order = ['bare', 'detach', 'ours', 'after'] if number % 2 else ['ours', 'after', 'detach', 'bare']
        for name in [*order, *(['theirs'] if theirs is not None else [])]:
            begin = time.perf_counter()
            with make[name]():
                model.loss(model(batch), batch).backward()
            model.zero_grad()
            if number > 1:
                taken[name].append(time.perf_counter() - begin)
    ratio = {name: statistics.median(x / bare for x, bare in zip(taken[name], taken['bare'])) for name in make}
    print(f'  a bare step: {statistics.median(taken["bare"]) * 1e3:.1f} ms, {len(taken["bare"])} steps each')
    print(f'  saved-tensor hooks that detach and do no more: {ratio["detach"]:.3f}')
    if theirs is not None:
        print(f"  finetuning-scheduler's module and saved-tensor hooks: {ratio['theirs']:.3f}")
    else:
        print('  finetuning-scheduler is not installed, so not measured')
    report('SavedTensorsHook in its window against bare, a step', ratio['ours'], 1.08)
    report('SavedTensorsHook after its window against bare, a step', round(ratio['after'], 2), 1.0)


def _finetuning_scheduler(model: Any) -> Optional[Callable[[], AbstractContextManager[Any]]]:
    try:
        hooks: Any = importlib.import_module('fts_examples.profiling.npp_hooks')
    except ImportError:
        return None

    def in_place() -> AbstractContextManager[Any]:
        stack = ExitStack()
        for module in model.modules():
            module.mem_info_handle = psutil.Process().memory_info
            stack.callback(module.register_forward_pre_hook(hooks._hook_npp_pre_forward).remove)
            stack.callback(module.register_forward_hook(hooks._hook_npp_post_forward).remove)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(hooks._npp_hook, lambda tensor: tensor))
        return stack

    return in_place
