"""Decoders as the speed run modded-nanogpt and torchtitan train them, written anew after their published settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.breadth.row import Row, Training, fused_adamw


def rows() -> Iterator[Row]:
    run = 'after KellerJordan/modded-nanogpt, track of 124 M, eager'
    yield Row('modded-nanogpt', f'{run}', '8 sequences of 1,024 random tokens', _speed_run)
    model = 'after pytorch/torchtitan, Llama 3'
    small, large = _Llama(256, 6, 16, 16, 2048), _Llama(4096, 4, 32, 8, 128256)
    yield Row('torchtitan debug model', f'{model}, debugmodel', '8 sequences of 2,048 random tokens', small.training(8))
    tokens = '1 sequence of 2,048 random tokens'
    for name, every in (('without checkpoints', 0), ('each layer checkpointed', 1), ('every second layer', 2)):
        source = f'{model} 8B with 4 layers, {name}'
        yield Row(f'torchtitan 8B {name}', source, tokens, large.training(1, every))
    yield Row('torchtitan 8B bfloat16', f'{model} 8B with 4 layers', tokens, large.training(1, dtype=torch.bfloat16))


class _Muon(torch.optim.Optimizer):
    """Momentum whose updates of matrices are made orthogonal, in five steps of Newton and Schulz."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {'lr': lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        del closure  # unused
        for group in self.param_groups:
            for matrix in group['params']:
                state = self.state[matrix]
                momentum = state.setdefault('momentum', torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 0.05)
                update = _orthogonal(matrix.grad.lerp(momentum, 0.95))
                matrix.add_(update, alpha=-group['lr'] * max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def _orthogonal(matrix: Tensor) -> Tensor:
    tall = matrix.shape[0] > matrix.shape[1]
    near = matrix.bfloat16()
    near = near.T if tall else near
    near = near / (near.norm() + 1e-7)
    for _ in range(5):
        square = near @ near.T
        near = 3.4445 * near + (2.0315 * square @ square - 4.775 * square) @ near
    return (near.T if tall else near).to(matrix.dtype)


class _Both(torch.optim.Optimizer):
    """Muon for matrices of the layers, Adam for all others."""

    def __init__(self, matrices: list[nn.Parameter], others: list[nn.Parameter], lr: float) -> None:
        self._parts = (_Muon(matrices, lr), fused_adamw(others, lr))
        super().__init__([*matrices, *others], {'lr': lr})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        del closure  # unused
        for part in self._parts:
            part.step()


def _norm(values: Tensor) -> Tensor:
    return F.rms_norm(values, (values.shape[-1],))


def _rotated(values: Tensor) -> Tensor:
    """Of queries or keys (batch, length, heads, width)."""
    length, width = values.shape[1], values.shape[-1]
    speeds = (1 / 1024) ** torch.linspace(0, 1, width // 4, device=values.device)
    speeds = torch.cat([speeds, speeds.new_zeros(width // 4)])
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=values.device), speeds)
    cosine, sine = angles.cos()[None, :, None], angles.sin()[None, :, None]
    one, other = values.float().chunk(2, dim=-1)
    return torch.cat([one * cosine + other * sine, other * cosine - one * sine], 3).type_as(values)


class _SpeedRunLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.mix = nn.Parameter(torch.tensor([0.5, 0.5]))
        self.skip = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, hidden: Tensor, first: Tensor, extra: Tensor) -> Tensor:
        hidden = self.skip[0] * hidden + self.skip[1] * first
        batch, length, width = hidden.shape
        split = self.qkv(_norm(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.unbind(2)
        value = self.mix[0] * value + self.mix[1] * extra.view_as(value)
        query, key = _rotated(_norm(query)), _rotated(_norm(key))
        seen = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (query, key, value)), is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.down(F.relu(self.up(_norm(hidden))).square())


class _SpeedRun(nn.Module):
    """The second half of the layers takes what the first half left, in reverse order."""

    def __init__(self, width: int = 768, layers: int = 12, heads: int = 6, words: int = 50304) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.values = nn.ModuleList(nn.Embedding(words, width) for _ in range(3))
        self.layers = nn.ModuleList(_SpeedRunLayer(width, heads) for _ in range(layers))
        self.weights = nn.Parameter(torch.ones(layers // 2))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        first = hidden = _norm(self.words(tokens))
        extras = [values(tokens) for values in self.values]
        half = len(self.layers) // 2
        left: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            if number >= half:
                hidden = hidden + self.weights[number - half] * left.pop()
            hidden = layer(hidden, first, extras[number % 3])
            if number < half:
                left.append(hidden)
        logits = self.head(_norm(hidden))
        return 30 * torch.sigmoid(logits.float() / 7.5)


def _speed_run() -> Training:
    model = _SpeedRun().bfloat16()
    tokens, wanted = torch.randint(0, 50304, (8, 1024)), torch.randint(0, 50304, (8, 1024))
    matrices = [each for each in model.layers.parameters() if each.ndim == 2]
    known = {id(each) for each in matrices}

    def optimizer(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return _Both(matrices, [each for each in parameters if id(each) not in known], lr)

    return Training(
        model,
        {'tokens': tokens},
        lambda logits: F.cross_entropy(logits.flatten(0, 1), wanted.flatten()),
        optimizer,
    )


class _LlamaLayer(nn.Module):
    def __init__(self, sizes: _Llama) -> None:
        super().__init__()
        width = sizes.width // sizes.heads
        self.sizes = sizes
        self.query = nn.Linear(sizes.width, sizes.width, bias=False)
        self.key = nn.Linear(sizes.width, width * sizes.groups, bias=False)
        self.value = nn.Linear(sizes.width, width * sizes.groups, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)
        inner = int(1.3 * int(8 * sizes.width / 3))
        inner = -(-inner // 1024) * 1024
        self.gate, self.up = (nn.Linear(sizes.width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, sizes.width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(sizes.width, eps=1e-5) for _ in range(2))

    def forward(self, hidden: Tensor, turns: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        sizes, before = self.sizes, self.norms[0](hidden)
        heads = (sizes.heads, sizes.groups, sizes.groups)
        parts = (self.query, self.key, self.value)
        query, key, value = (part(before).view(batch, length, count, -1) for part, count in zip(parts, heads))
        query, key = _turned(query, turns), _turned(key, turns)
        again = sizes.heads // sizes.groups
        key, value = (each.repeat_interleave(again, 2) if again > 1 else each for each in (key, value))
        seen = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (query, key, value)), is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        after = self.norms[1](hidden)
        return hidden + self.down(F.silu(self.gate(after)) * self.up(after))


def _turned(values: Tensor, turns: Tensor) -> Tensor:
    """By rotations as complex numbers (length, half of a head's width)."""
    pairs = torch.view_as_complex(values.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[: values.shape[1], None]).flatten(3).type_as(values)


class _LlamaModel(nn.Module):
    def __init__(self, sizes: _Llama, every: int) -> None:
        super().__init__()
        self.every = every
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(_LlamaLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, eps=1e-5)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)
        half = sizes.width // sizes.heads // 2
        angles = torch.outer(torch.arange(2048.0), 500000.0 ** -(torch.arange(half) / half))
        self.register_buffer('turns', torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens)
        for number, layer in enumerate(self.layers):
            if self.every and number % self.every == 0:
                hidden = checkpoint(layer, hidden, self.turns, use_reentrant=False)
            else:
                hidden = layer(hidden, self.turns)
        return self.head(self.norm(hidden))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Llama:
    width: int
    layers: int
    heads: int
    groups: int
    words: int

    def training(self, batch: int, every: int = 0, dtype: torch.dtype = torch.float32) -> Callable[[], Training]:
        """Of a batch of so many sequences; ``every`` layers one is checkpointed, or none if it is 0."""

        def make() -> Training:
            model = _LlamaModel(self, every)
            for parameter in model.parameters():
                parameter.data = parameter.data.to(dtype)
            tokens, wanted = torch.randint(0, self.words, (batch, 2048)), torch.randint(0, self.words, (batch, 2048))
            return Training(
                model,
                {'tokens': tokens},
                lambda logits: F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten()),
            )

        return make
