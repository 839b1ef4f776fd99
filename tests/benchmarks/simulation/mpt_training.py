"""A training of LLM Foundry's MPT as its authors ran it for their table of throughputs, in torch alone.

No biases, learned positions, the head tied to the embedding, flash attention, a cross entropy that keeps nothing but
the logits, metrics of training, FSDP with a unit for each block, and DecoupledAdamW's separate operators for each
parameter.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

VOCABULARY = 50368
#: LLM Foundry's cross entropy and perplexity of training, which Composer computes from each microbatch's logits.
_METRICS = 2


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a model."""

    width: int
    layers: int
    heads: int


SHAPES = {
    '125m': Shape(768, 12, 12),
    '350m': Shape(1024, 24, 16),
    '760m': Shape(1536, 24, 12),
    '1b': Shape(2048, 24, 16),
    '3b': Shape(2560, 32, 20),
    '7b': Shape(4096, 32, 32),
    '13b': Shape(5120, 40, 40),
    '30b': Shape(7168, 48, 56),
    '70b': Shape(8192, 80, 64),
}


@dataclasses.dataclass(frozen=True)
class Training:
    """One of the trainings.

    Attributes:
        microbatch: sequences of one rank that go through the model at once.
        microbatches: of one rank in a step.
        pure: whether gradients are reduced in bfloat16 too.
        checkpointed: whether each block's activations are computed again.
    """

    model: str
    length: int
    ranks: int
    microbatch: int
    microbatches: int
    pure: bool
    checkpointed: bool


class Block(nn.Module):
    """Attention and a feed-forward network, each after a layer norm and around it a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            each.view(batch, length, self.heads, -1).transpose(1, 2)
            for each in self.qkv(self.norm_1(x)).chunk(3, dim=2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class MPT(nn.Module):
    """Tokens to the loss."""

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, shape.width), nn.Embedding(length, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.logits: Tensor
        self.labels: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight).flatten(0, 1)
        labels = ids.roll(-1).flatten()
        loss = _CrossEntropy.apply(logits, labels)
        self.logits, self.labels = logits.detach(), labels
        return loss  # type: ignore[no-any-return]


@torch.library.custom_op('memprof_benchmark::cross_entropy', mutates_args=())
def _cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """One kernel, as flash-attn's: the losses, and what backward needs beside the logits."""
    losses = logits.new_zeros(len(logits), dtype=torch.float32)
    return losses, torch.empty_like(losses)


@torch.library.custom_op('memprof_benchmark::cross_entropy_backward', mutates_args=())
def _cross_entropy_backward(logits: Tensor, gradient: Tensor) -> Tensor:
    """One kernel."""
    return logits.new_zeros(logits.shape)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        losses, sums = _cross_entropy(logits, labels)
        ctx.save_for_backward(logits, sums)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        logits, _ = ctx.saved_tensors
        return _cross_entropy_backward(logits, gradient), None


def make(training: Training) -> tuple[MPT, torch.optim.Optimizer]:
    """The sharded model and its optimizer."""
    shape = SHAPES[training.model]
    with torch.device('meta'):
        model = MPT(shape, training.length)
    if training.checkpointed:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    mesh = init_device_mesh('cuda', (training.ranks,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16 if training.pure else torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device='cuda')
    return model, torch.optim.AdamW(model.parameters(), foreach=False)


def step(model: MPT, optimizer: torch.optim.Optimizer, training: Training, microbatches: int) -> None:
    """One step of the optimizer."""
    ids = torch.zeros(training.microbatch, training.length, dtype=torch.long, device='cuda')
    for _ in range(microbatches):
        (model(ids) / microbatches).backward()
        with torch.no_grad():
            for _ in range(_METRICS):
                F.cross_entropy(model.logits.float(), model.labels, reduction='sum')
        del model.logits
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
