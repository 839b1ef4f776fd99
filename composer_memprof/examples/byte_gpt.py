"""A small GPT over bytes: a causal transformer without a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from composer.models import ComposerModel
from torch import Tensor, nn
from torch.nn import functional as F

from composer_memprof.messages import check_one_of, must_be

VOCAB_SIZE = 256


class Block(nn.Module):
    """Attention, then a feed-forward network, each with a layer norm before and a residual. (batch, length, d_model)."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm_1 = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.norm_2 = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, d_model = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.n_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, d_model))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Blocks(nn.Sequential):
    """The blocks in sequence. FSDP shards each by itself."""

    def fsdp_wrap_fn(self, module: nn.Module) -> bool:
        """Called by Composer."""
        return isinstance(module, Block)

    def activation_checkpointing_fn(self, module: nn.Module) -> bool:
        """Called by Composer where FSDP is to checkpoint activations."""
        return isinstance(module, Block)


class ByteGPT(ComposerModel):
    """A GPT over bytes, for Composer.

    Args:
        d_model (int): width. Default: ``160``.
        n_heads (int): attention heads; ``d_model`` must be a multiple of it. Default: ``4``.
        n_layers (int): blocks. Default: ``4``.
        max_seq_len (int): the longest sequence, in bytes. Default: ``128``.
        init_device (str): ``'cpu'``, or ``'meta'`` for weights that only FSDP makes, on its device. Default: ``'cpu'``.

    Raises:
        ValueError: if a size is below 1, or ``d_model`` is not a multiple of ``n_heads``, or for another device.
    """

    def __init__(
        self,
        d_model: int = 160,
        n_heads: int = 4,
        n_layers: int = 4,
        max_seq_len: int = 128,
        init_device: str = 'cpu',
    ) -> None:
        super().__init__()
        check_one_of('init_device', init_device, ('cpu', 'meta'))
        for name, size in (('d_model', d_model), ('n_heads', n_heads), ('n_layers', n_layers)):
            if not isinstance(size, int) or size < 1:
                raise must_be(name, 'a whole number above 0', size)
        if d_model % n_heads:
            raise must_be('d_model', f'a multiple of n_heads={n_heads}', d_model)
        self.d_model, self.n_heads, self.n_layers, self.vocab_size = d_model, n_heads, n_layers, VOCAB_SIZE
        with torch.device(init_device):
            self.byte_embedding = nn.Embedding(VOCAB_SIZE, d_model)
            self.position_embedding = nn.Embedding(max_seq_len, d_model)
            self.blocks = Blocks(*(Block(d_model, n_heads) for _ in range(n_layers)))
            self.norm = nn.LayerNorm(d_model)
            self.head = nn.Linear(d_model, VOCAB_SIZE, bias=False)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits (batch, length, 256) of the next byte, from ``input_ids`` (batch, length)."""
        ids = batch['input_ids']
        x = self.byte_embedding(ids) + self.position_embedding(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy, in nats per byte."""
        return F.cross_entropy(outputs.flatten(0, 1), batch['labels'].flatten())

    def eval_forward(self, batch: Mapping[str, Tensor], outputs: Any = None) -> Tensor:
        return self(batch) if outputs is None else outputs
