"""Seconds of one FSDP2 step of a GPT on 8 ranks.

``python -m tests.benchmarks.simulation.simulated_step simulated|timed|fake``: ``simulated`` runs on a simulated GPU, with the
process prepared for it, and ``timed`` with the clocks that say how long the step takes there. ``fake`` runs it as torch's documentation of
``FSDPMemTracker`` does: on fake tensors, under the tracker.
"""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import init_process_group
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from composer_memprof.examples.byte_gpt import Block, ByteGPT
from composer_memprof.simulation.step_clock import StepClock

_RANKS = 8


def main(how: str) -> None:
    fake = how == 'fake'
    if fake:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        init_process_group('fake', rank=0, world_size=_RANKS, store=FakeStore())
    else:
        init_process_group()
    device = 'cpu' if fake else 'cuda'  # sharding needs CUDA's streams, which fake tensors do not bring
    mesh = init_device_mesh(device, (_RANKS,))
    mode: AbstractContextManager[object] = FakeTensorMode() if fake else nullcontext()
    with mode:
        with torch.device('meta'):
            model: nn.Module = ByteGPT(d_model=1024, n_heads=16, n_layers=24, max_seq_len=512)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for module in [*(each for each in model.modules() if isinstance(each, Block)), model]:
            fully_shard(module, mesh=mesh, mp_policy=policy)
        model.to_empty(device=device)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9
        )  # Adam reads its step, which fake tensors lack
        ids = torch.zeros(4, 512, dtype=torch.long, device=device)
        batch = {'input_ids': ids, 'labels': ids}

        def step() -> None:
            model.loss(model(batch), batch).backward()  # type: ignore[operator]
            optimizer.step()
            optimizer.zero_grad()

        tracker = FSDPMemTracker(model, optimizer) if fake else None
        if tracker is not None:
            tracker.track_inputs((ids,))
        with tracker or nullcontext():
            step()  # the first makes the optimizer's state
            if tracker is not None:
                tracker.reset_mod_stats()
            clock = StepClock() if how == 'timed' else None
            if clock is not None:
                clock.start()
            began = time.perf_counter()
            step()
            print(time.perf_counter() - began)


if __name__ == '__main__':
    main(sys.argv[1])
