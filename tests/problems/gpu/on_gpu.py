"""Memory of a GPU that runs out. Each problem is trained in a process of its own, on a simulated GPU of 14.7 GiB."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from composer import Trainer
from composer.core import Callback, State
from composer.loggers import Logger
from composer.models import ComposerModel
from composer.utils import dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

from composer_memprof import HostRSS, MemorySnapshot, StepTimes
from tests.conftest import simulated_gpu
from tests.problems.on_host import grows
from tests.problems.problem import Problem, line_of
from tests.support.processes.simulated_runs import run_on_a_server, run_rank

GIB = 1 << 30


class Tokens(Dataset):
    """Sequences of zeros; one of them may be eight times as long."""

    def __init__(self, samples: int, length: int, longest: int = -1) -> None:
        self.samples, self.length, self.longest = samples, length, longest

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(self.length * (8 if index == self.longest else 1), dtype=torch.long)


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    longest = max(map(len, samples))
    return torch.stack([F.pad(each, (0, longest - len(each))) for each in samples])


class Attention(nn.Module):
    def __init__(self, width: int, is_fast: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.is_fast = nn.Linear(width, 3 * width), nn.Linear(width, width), is_fast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (each.view(batch, length, 8, width // 8).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        if self.is_fast:
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / 8
            found = scores.softmax(-1) @ v
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, is_fast: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, is_fast)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(ComposerModel):
    def __init__(self, width: int = 512, layers: int = 4, vocabulary: int = 1000, is_fast: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, is_fast) for _ in range(layers)])
        self.lm_head = nn.Linear(width, vocabulary)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        x = self.embedding(batch)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(x)

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch.flatten())

    def eval_forward(self, batch: torch.Tensor, outputs: Any = None) -> torch.Tensor:
        return self(batch)


class LossInForward(GPT):
    """Computes the loss in forward, of shifted copies of the logits, as models of transformers do."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output = self.lm_head
        x = self.embedding(batch)
        for block in self.blocks:
            x = block(x)
        out = output(x)
        earlier = out[:, :-1].contiguous().float()
        return nn.CrossEntropyLoss()(earlier.view(-1, earlier.size(-1)), batch[:, 1:].reshape(-1))

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return outputs


class ComparesPairs(GPT):
    """Compares each row with each other one in the loss."""

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        rows = outputs.flatten(0, 1)[:, :256].float()
        difference = rows[:, None] - rows[None]
        return difference.pow(2).mean()


class AsksForMuch(GPT):
    """Asks for one tensor that is larger than the device."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        x = super().forward(batch)
        gates = x.new_ones(len(x), 256, 4096)
        return x + (gates[..., None] * x.new_ones(1024)).mean()


class CollectsOutputs(Callback):
    """Keeps what each batch of an evaluation returns until its end."""

    def eval_start(self, state: State, logger: Logger) -> None:
        self.outputs: list[torch.Tensor] = []

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        self.outputs.append(state.outputs.float())


class SecondOptimizer(Callback):
    """Steps an optimizer of its own for the same parameters."""

    def fit_start(self, state: State, logger: Logger) -> None:
        self.optimizer = torch.optim.AdamW(state.model.parameters(), lr=1e-5)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        self.optimizer.step()


class WithTeacher(GPT):
    """Keeps a far larger model on the GPU, which is no part of it."""

    def __init__(self) -> None:
        super().__init__(layers=24)
        wide = (nn.Linear(16384, 16384, device='cuda') for _ in range(10))
        object.__setattr__(self, 'teacher', nn.Sequential(*wide).requires_grad_(False))


class WithTable(GPT):
    def __init__(self) -> None:
        super().__init__(layers=24)
        self.table = [torch.zeros(1 << 28, device='cuda') for _ in range(11)]


class EvaluatesWithGradients(GPT):
    def eval_forward(self, batch: torch.Tensor, outputs: Any = None) -> torch.Tensor:
        with torch.enable_grad():
            return self(batch)


class KeepsLossesOfEvaluation(GPT):
    """Keeps the losses of an evaluation, each with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []

    def eval_forward(self, batch: torch.Tensor, outputs: Any = None) -> torch.Tensor:
        with torch.enable_grad():
            found = self(batch)
            self.losses.append(self.loss(found, batch))
            return found


class Saves(Callback):
    """Copies the model's state on the GPU to save it."""

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        values = [*state.model.state_dict().values()]
        for kept in state.optimizers[0].state.values():
            values += kept.values()
        self.copies = [value.clone() for value in values]


class KeepsPinned(Callback):
    """Keeps a pinned copy of something of each batch."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        self.kept.append(torch.empty(1 << 20, pin_memory=True).fill_(1))


class Fragments(GPT):
    """Frees every second block, so that half of each segment is idle, and asks for a large one."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        blocks = [torch.empty(9 << 20, dtype=torch.uint8, device='cuda') for _ in range(1400)]
        del blocks[::2]
        torch.empty(6 * GIB, dtype=torch.uint8, device='cuda')
        return super().forward(batch)


def trains(model: Callable[[], GPT], *, length: int = 256, size: int = 8, batches: int = 8, **more: Any) -> None:
    data = more.pop('data', None) or Tokens(batches * size, length)
    with torch.device('cuda'):  # where weights cost neither time nor memory of the host
        built = model()
    trainer = Trainer(
        model=built,
        train_dataloader=data if isinstance(data, DataLoader) else DataLoader(data, size, collate_fn=padded),
        optimizers=torch.optim.AdamW(built.parameters()),
        max_duration=f'{batches}ba',
        run_name='test-run',
        device='gpu',
        progress_bar=False,
        callbacks=[MemorySnapshot(on_oom=True), *more.pop('callbacks', [])],
        seed=7,
        **{'precision': 'amp_fp16', **more},
    )
    with contextlib.suppress(torch.OutOfMemoryError):
        trainer.fit()
    trainer.close()


def _large_evaluation() -> None:
    data = DataLoader(Tokens(640, 2048), batch_size=640)
    trains(GPT, batches=4, eval_dataloader=data, eval_interval='2ba')


def _evaluates(model: Callable[[], GPT]) -> None:
    trains(
        model, length=2048, size=2, batches=4, eval_dataloader=DataLoader(Tokens(480, 2048), 48), eval_interval='2ba'
    )


def _one_unit() -> None:
    """FSDP2 shards the model as one unit, on a rank of eight."""
    dist.initialize_dist('gpu')
    with torch.device('cuda'):
        model = GPT(4096, 11, 10_000)
    fully_shard(model)
    data = Tokens(64, 16)
    trains(lambda: model, data=DataLoader(data, batch_size=1, sampler=dist.get_sampler(data)))


RUNS: dict[str, Callable[[], None]] = {
    'logits': lambda: trains(lambda: GPT(vocabulary=50_000), length=2048, size=16),
    'logits in forward': lambda: trains(lambda: LossInForward(vocabulary=50_000), length=2048, size=16),
    'a teacher beside the model': lambda: trains(WithTeacher, length=1024, size=16),
    'tensors beside the model': lambda: trains(WithTable, length=2048, size=16),
    'a second optimizer': lambda: trains(
        lambda: GPT(4096, 3, 10_000), length=16, size=1, callbacks=[SecondOptimizer()]
    ),
    'pairs in the loss': lambda: trains(ComparesPairs),
    'attention without flash': lambda: trains(lambda: GPT(is_fast=False), length=4096),
    'activations of many layers': lambda: trains(lambda: GPT(layers=90), length=2048),
    'fp32 where bf16 would do': lambda: trains(lambda: GPT(layers=48), length=2048, precision='fp32'),
    "the model's own state": lambda: trains(lambda: GPT(4096, 4, 10_000), length=16, size=1),
    'a large evaluation': _large_evaluation,
    'an evaluation with gradients': lambda: _evaluates(EvaluatesWithGradients),
    'losses of an evaluation': lambda: _evaluates(KeepsLossesOfEvaluation),
    'copies for a checkpoint': lambda: trains(lambda: GPT(4096, 3, 10_000), length=16, size=1, callbacks=[Saves()]),
    'one unit of FSDP': _one_unit,
    'pinned memory': lambda: trains(
        lambda: GPT(64, 1, 100), length=8, size=1, batches=150, callbacks=[HostRSS(interval=0.05), KeepsPinned()]
    ),
    'one long sequence': lambda: trains(lambda: GPT(layers=12), size=16, data=Tokens(192, 1024, longest=100)),
    'fragmentation': lambda: trains(Fragments),
    'one large tensor': lambda: trains(AsksForMuch),
    'outputs of an evaluation': lambda: trains(
        lambda: GPT(vocabulary=16_000),
        length=2048,
        size=2,
        batches=4,
        callbacks=[CollectsOutputs()],
        eval_dataloader=DataLoader(Tokens(480, 2048), 4),
        eval_interval='2ba',
    ),
    'a healthy GPU': lambda: trains(GPT, callbacks=[StepTimes()]),
    'a healthy GPU in fp32': lambda: trains(GPT, precision='fp32'),
}


def apart(name: str, module: str = 'gpu.on_gpu') -> Callable[[], None]:
    """Train a run of a module's ``RUNS`` in a process of its own."""

    def run() -> None:
        code = f'from tests.problems.{module} import RUNS; RUNS[{name!r}]()'
        if 'FSDP' in name:
            run_rank(code, gpu='t4')
            return
        done = run_on_a_server(code, environment=simulated_gpu('t4'))
        assert done.returncode == 0, done.stderr[-2000:]

    return run


PROBLEMS: dict[str, Problem] = {
    name: Problem(apart(name), ('Memory ran out', *says), change, size)
    for name, says, change, size in (
        ('logits', ('the logits', line_of(GPT.forward, 'self.lm_head')), 'compute the loss in chunks', 3.05 * GIB),
        (
            'logits in forward',
            ('the logits', line_of(LossInForward.forward, 'output(x)'), line_of(LossInForward.forward, 'earlier =')),
            'compute the loss in chunks',
            0,
        ),
        (
            'a teacher beside the model',
            ('no part of the model', 'WithTeacher.teacher'),
            'Keep WithTeacher.teacher',
            10 * GIB,
        ),
        ('tensors beside the model', ('no part of the model', 'WithTable.table'), 'Keep WithTable.table', 11 * GIB),
        (
            'a second optimizer',
            ("the model's own state", line_of(SecondOptimizer.after_train_batch, 'step()')),
            'Use one optimizer',
            0,
        ),
        (
            'pairs in the loss',
            ('a few large tensors', line_of(ComparesPairs.loss, 'difference = ')),
            'Use a smaller device_train_microbatch_size',
            4 * GIB,
        ),
        (
            'attention without flash',
            ("attention's scores", line_of(Attention.forward, 'softmax')),
            'scaled_dot_product_attention',
            0,
        ),
        ('activations of many layers', ('the activations of', line_of(GPT.forward, 'block(x)')), 'Checkpoint', 0),
        ('fp32 where bf16 would do', ('in fp32',), "precision='amp_bf16'", 0),
        ("the model's own state", ("the model's own state", 'optimizer state'), 'Shard', 0),
        ('a large evaluation', ('in evaluation',), 'Evaluate in smaller batches', 0),
        ('an evaluation with gradients', ('in evaluation', 'a graph for backward'), 'torch.no_grad()', 0),
        ('losses of an evaluation', ('in evaluation', 'a graph for backward'), 'torch.no_grad()', 0),
        (
            'copies for a checkpoint',
            (
                'while a checkpoint was saved',
                line_of(Saves.batch_checkpoint, 'clone').replace('batch_checkpoint', '<listcomp>'),
            ),
            'Copy what is saved to host memory',
            0,
        ),
        (
            'one large tensor',
            ('one tensor', line_of(AsksForMuch.forward, 'gates[')),
            'Use a smaller device_train_microbatch_size',
            16 * GIB,
        ),
        (
            'outputs of an evaluation',
            (
                'in evaluation',
                line_of(CollectsOutputs.eval_batch_end, 'append'),
                'CollectsOutputs.outputs',
            ),
            'Stop keeping',
            4 * 2048 * 16_000 * 4,
        ),
        ('one unit of FSDP', ('FSDP gathers much of the model at once',), 'Make blocks.* units', 0),
        ('one long sequence', ('in batch 6', '8.0 times as large'), 'Cut or bucket long inputs', 0),
        ('fragmentation', ('fragmentation',), 'expandable_segments:True', 0),
    )
}
PROBLEMS['pinned memory'] = Problem(apart('pinned memory'), *grows('between batches', 'KeepsPinned.kept'), 4 << 20)
HEALTHY: dict[str, Callable[[], None]] = {name: apart(name) for name in ('a healthy GPU', 'a healthy GPU in fp32')}
