"""Trainings of one GPU that others published step times of, each as a function that makes a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Optional

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Step = Callable[[], None]
Loss = Callable[[], Tensor]
#: By the name of a precision, the data type of autocast. ``fp32`` has no TF32, and no precision changes convolutions.
PRECISIONS: dict[str, Optional[torch.dtype]] = {
    'fp32': None,
    'tf32': None,
    'bf16': torch.bfloat16,
    'fp16': torch.float16,
}


class Attention(nn.Module):
    """Self-attention of (batch, length, width), by torch's fused kernel or by the whole matrix of scores."""

    def __init__(self, width: int, heads: int, causal: bool, fused: bool, length: int) -> None:
        super().__init__()
        self.heads, self.causal, self.fused = heads, causal, fused
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if causal and not fused:
            self.register_buffer('seen', torch.ones(length, length).tril().view(1, 1, length, length))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in self.qkv(x).split(width, 2))
        if self.fused:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = (q @ k.transpose(-2, -1)) * k.shape[-1] ** -0.5
            if self.causal:
                scores = scores.masked_fill(self.seen[:, :, :length, :length] == 0, float('-inf'))
            attended = F.softmax(scores, dim=-1) @ v
        return self.out(attended.transpose(1, 2).contiguous().view(batch, length, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a feed-forward network of four times the width, each after a layer norm, with biases."""

    def __init__(self, width: int, heads: int, causal: bool, fused: bool, length: int, gelu: str) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal, fused, length)
        self.up, self.down, self.gelu = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), gelu

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate=self.gelu))


class GPT2(nn.Module):
    """GPT-2 of the smallest size: tokens (batch, length) to logits, the head tied to the embedding."""

    def __init__(self, vocabulary: int, length: int, fused: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, 768), nn.Embedding(length, 768)
        self.blocks = nn.ModuleList(Block(768, 12, True, fused, length, 'tanh') for _ in range(12))
        self.norm = nn.LayerNorm(768)
        self.checkpointed = False

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class ViT(nn.Module):
    """A vision transformer with patches of 16 and images of 224 pixels: (batch, 3, 224, 224) to 1,000 logits."""

    def __init__(self, width: int, layers: int, fused: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.Sequential(*(Block(width, width // 64, False, fused, 197, 'none') for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])  # type: ignore[no-any-return]


def gpt2(
    batch: int,
    precision: str,
    *,
    vocabulary: int = 50257,
    fused: bool = True,
    compiled: bool = False,
    checkpointed: bool = False,
    microbatches: int = 1,
    fused_optimizer: bool = False,
) -> Step:
    """A training of GPT-2 with sequences of 1,024 tokens and AdamW."""
    model = GPT2(vocabulary, 1024, fused).cuda()
    model.checkpointed = checkpointed
    called = torch.compile(model) if compiled else model
    ids = torch.zeros(batch, 1024, dtype=torch.long, device='cuda')

    def loss() -> Tensor:
        return F.cross_entropy(called(ids).flatten(0, 1), ids.flatten()) / microbatches

    optimizer = torch.optim.AdamW(model.parameters(), fused=True if fused_optimizer else None)
    return _training(loss, optimizer, precision, microbatches=microbatches)


def vit(batch: int, precision: str, *, width: int = 768, layers: int = 12, fused: bool, trains: bool = True) -> Step:
    """A training with SGD, or the forward pass alone."""
    model = ViT(width, layers, fused).cuda()
    return _of_images(model, torch.zeros(batch, 3, 224, 224, device='cuda'), precision, trains)


def convolutions(name: str, batch: int, precision: str, *, channels_last: bool, trains: bool = True) -> Step:
    """A network of torchvision, with images of 224 pixels."""
    model, images = getattr(torchvision.models, name)().cuda(), torch.zeros(batch, 3, 224, 224, device='cuda')
    if channels_last:
        model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    return _of_images(model, images, precision, trains)


def _of_images(model: nn.Module, images: Tensor, precision: str, trains: bool) -> Step:
    labels = torch.zeros(len(images), dtype=torch.long, device='cuda')
    if trains:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return _training(lambda: F.cross_entropy(model(images), labels), optimizer, precision)
    model.eval()

    def step() -> None:
        with torch.no_grad(), _in(precision):
            model(images)

    return step


def bert_large(batch: int, precision: str, *, microbatches: int = 1, checkpointed: bool = False) -> Step:
    """Hugging Face's BERT-large as a classifier of 512 tokens, as its Trainer trained it in 2022: attention by the whole
    matrix of scores, AdamW by separate operators, gradients clipped.
    """
    from transformers import BertConfig, BertForSequenceClassification

    config: Any = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation='eager',
    )
    model = BertForSequenceClassification(config).cuda()
    if checkpointed:
        model.gradient_checkpointing_enable()
    model.train()
    ids = torch.zeros(batch, 512, dtype=torch.long, device='cuda')
    labels = torch.zeros(batch, dtype=torch.long, device='cuda')
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    return _training(
        lambda: model(ids, labels=labels).loss / microbatches,
        optimizer,
        precision,
        microbatches=microbatches,
        clipped=model.parameters,
    )


def _training(
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    precision: str,
    *,
    microbatches: int = 1,
    clipped: Optional[Callable[[], Iterable[nn.Parameter]]] = None,
) -> Step:
    scaler = torch.amp.GradScaler('cuda', enabled=precision == 'fp16')

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(microbatches):
            with _in(precision):
                found = loss()
            scaler.scale(found).backward()
        if clipped is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(clipped(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


def _in(precision: str) -> AbstractContextManager[Any]:
    torch.backends.cuda.matmul.allow_tf32 = precision != 'fp32'
    dtype = PRECISIONS[precision]
    return torch.autocast('cuda', dtype) if dtype is not None else contextlib.nullcontext()
