"""The recorder of SavedTensorsHook: bytes match calculations by hand."""

from __future__ import annotations

from typing import Optional

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from composer_memprof.recorders.modules.names import OUTSIDE
from composer_memprof.recorders.saved_tensors.result import SavedTensors
from tests.support.callbacks.saved_tensors import record

each_dtype = pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=['fp32', 'bf16'])


def bytes_by_module(result: SavedTensors) -> dict[str, int]:
    return {row.name: row.bytes for row in result.modules if row.bytes}


@each_dtype
def test_linear_layers_keep_their_inputs_and_relu_its_output(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    x = torch.randn(2, 8, dtype=dtype)
    result = record(model, lambda: model(x).pow(2).mean().backward())
    # ReLU keeps its output (2, 16), which is the second layer's input too, and counts for ReLU alone;
    # pow keeps the model's output (2, 4).
    assert bytes_by_module(result) == {'1': 2 * 16 * size, OUTSIDE: 2 * 4 * size}
    assert result.input_bytes == 2 * 8 * size  # kept by the first layer
    assert result.parameter_bytes == 16 * 4 * size  # the second weight, for its input's gradient
    assert result.peak_bytes == result.total_bytes
    assert result.left_bytes == 0
    assert {row.name: row.bytes for row in result.operations} == {
        'ReluBackward0': 2 * 16 * size,
        'PowBackward0': 2 * 4 * size,
    }
    assert [(row.dtype, row.shape) for row in result.shapes] == [(str(dtype)[6:], (2, 16)), (str(dtype)[6:], (2, 4))]


@each_dtype
def test_layer_norm_keeps_its_input_mean_and_deviation_and_dropout_its_mask(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Dropout(0.5)).to(dtype)
    x = torch.randn(2, 8, dtype=dtype)
    result = record(model, lambda: model(x).sum().backward())
    # The norm: its input (2, 16), one mean and one deviation a row. Dropout on a CPU multiplies by a scaled mask in
    # the input's dtype, and keeps that.
    assert bytes_by_module(result) == {'1': (2 * 16 + 2 + 2) * size, '2': 2 * 16 * size}
    # The norm's weight and bias; the first layer's weight is not needed, because x has no gradient.
    assert result.parameter_bytes == 2 * 16 * size
    # What checkpointing the norm would free: mean and deviation, but not its input.
    assert {row.name: row.frees_bytes for row in result.checkpoints} == {'1': 4 * size}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(batch, length, width))


@each_dtype
def test_attention_keeps_one_storage_for_q_k_and_v_its_output_and_a_float_a_row(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    model = Attention().to(dtype)
    x = torch.randn(2, 5, 16, dtype=dtype)
    result = record(model, lambda: model(x).sum().backward())
    qkv = 2 * 5 * 48 * size  # three views of one storage
    output = 2 * 5 * 16 * size  # the out layer's input is a view of it
    logsumexp = 2 * 2 * 5 * 4  # batch, heads, length; always fp32
    assert bytes_by_module(result) == {'': qkv + output + logsumexp}


@pytest.mark.parametrize('use_reentrant', [False, True])
@each_dtype
def test_a_checkpointed_block_keeps_only_its_input(use_reentrant: bool, dtype: torch.dtype) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 16)
            self.block = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
            self.last = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(checkpoint(self.block, self.first(x), use_reentrant=use_reentrant))

    size = dtype.itemsize
    model = Checkpointed().to(dtype)
    x = torch.randn(2, 8, dtype=dtype)
    result = record(model, lambda: model(x).sum().backward())
    # The checkpoint keeps the block's input (2, 16), which counts for the calling module; the last layer keeps its own.
    assert bytes_by_module(result) == {'': 2 * 16 * size, 'last': 2 * 16 * size}
    # Run again, GELU keeps its input and the layer after it GELU's output, both (2, 64).
    assert result.recomputed_bytes == (2 * 2 * 64 * size if use_reentrant else 0)
    unseen = [name for names in result.unseen.values() for name in names]
    assert ('block.1' in unseen) == (not use_reentrant)
    assert result.left_bytes == 0


def test_checkpointing_a_block_frees_the_bytes_that_were_predicted() -> None:
    class Blocks(nn.Module):
        def __init__(self, checkpointed: Optional[int]) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)
            )
            self.checkpointed = checkpointed

        def forward(self, x: Tensor) -> Tensor:
            for number, block in enumerate(self.blocks):
                x = x + (checkpoint(block, x, use_reentrant=False) if number == self.checkpointed else block(x))
            return x

    x = torch.randn(4, 16, requires_grad=True)
    plain, less = (Blocks(checkpointed) for checkpointed in (None, 1))
    before = record(plain, lambda: plain(x).sum().backward())
    after = record(less, lambda: less(x).sum().backward())
    said = {row.name: row.frees_bytes for row in before.checkpoints}
    assert said['blocks.1'] == before.total_bytes - after.total_bytes > 0
    assert max(said, key=lambda name: said[name]).startswith('blocks.')


def test_buffers_are_counted_on_their_own() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16))
    x = torch.randn(2, 8)
    result = record(model, lambda: model(x).sum().backward())
    assert result.buffer_bytes == 2 * 16 * 4  # running mean and variance
    assert bytes_by_module(result) == {'1': (2 * 16 + 2 * 16) * 4}  # the input, and the batch's mean and deviation


def test_a_storage_counts_once_for_tied_weights_views_and_several_modules() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 8)
            self.head = nn.Linear(8, 32, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            hidden = self.embedding(ids).tanh()
            return (self.head(hidden) * 1).sum() + hidden[:2].mul(hidden[:2]).sum()

    model = Tied()
    ids = torch.arange(6)
    result = record(model, lambda: model(ids).backward())
    assert bytes_by_module(result) == {'': 6 * 8 * 4}
    assert result.parameter_bytes == 32 * 8 * 4
    assert result.input_bytes == 6 * 8  # the ids


def test_packed_bytes_follow_finetuning_schedulers_rule() -> None:
    model = Attention()
    x = torch.randn(2, 5, 16)
    packed = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal packed
        if not isinstance(tensor, nn.Parameter):
            packed += tensor.nbytes
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x).sum().backward()
    assert record(model, lambda: model(x).sum().backward()).packed_bytes == packed


def test_live_bytes_fall_as_backward_consumes_them() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(8)))
    x = torch.randn(32, 64)
    result = record(model, lambda: model(x).sum().backward())
    sizes = [size for _, size in result.live]
    top = sizes.index(max(sizes))
    assert max(sizes) == result.peak_bytes == 8 * 32 * 64 * 4
    assert sizes[: top + 1] == sorted(sizes[: top + 1])
    assert sizes[top:] == sorted(sizes[top:], reverse=True)
    assert sizes[-1] == 0
