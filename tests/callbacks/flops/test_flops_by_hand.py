"""Flops: counts of operations and modules match calculations by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from composer_memprof import Flops
from composer_memprof.recorders.flops import formulas
from composer_memprof.recorders.flops.result import BatchFlops
from composer_memprof.simulated_gpu.stand_ins.flash_attention import operators
from composer_memprof.simulated_gpu.stand_ins.flash_attention_3 import operators as operators_3
from tests.conftest import Regression, train
from tests.support.callbacks.flops import LAYERS, LENGTH, REGRESSION, count, gpt, gpt_flops, only, texts, train_gpt


def by_module(result: BatchFlops) -> dict[str, tuple[int, int, int]]:
    return {row.name: (row.forward_flops, row.backward_flops, row.recomputed_flops) for row in result.modules}


def test_the_count_of_a_gpt_matches_its_matrix_products_by_hand() -> None:
    expected = gpt_flops()
    train_gpt(Flops())
    data = only()
    assert data['forward_flops'] == expected['forward']
    assert data['backward_flops'] == expected['backward']
    assert data['batch_flops'] == expected['forward'] + expected['backward']
    assert data['recomputed_flops'] == expected['again']
    assert data['hardware_flops'] == data['batch_flops'] + expected['again']
    modules = {row['name']: row for row in data['modules']}
    assert modules['']['flops'] == data['batch_flops']
    assert modules['blocks.1.up']['forward_flops'] == expected['up']
    assert modules['blocks.1.up']['backward_flops'] == 2 * expected['up']
    operations = {row['name']: row for row in data['operations']}
    attention = operations['aten._scaled_dot_product_flash_attention_for_cpu']
    assert attention['forward_flops'] == 2 * expected['again']
    assert attention['calls'] == LAYERS


def test_microbatches_are_counted_together() -> None:
    train_gpt(Flops(), device_train_microbatch_size=2)
    data = only()
    assert data['batch_flops'] == 3 * gpt_flops()['forward']
    assert {row['name']: row['calls'] for row in data['modules']}[''] == 4


def test_torchs_count_without_fused_attention_is_the_same() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = gpt()
    batch = next(iter(texts([LENGTH])))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as theirs:
        model.loss(model(batch), batch).backward()
    ours = count(model, lambda: model.loss(model(batch), batch).backward())
    assert ours.batch_flops == theirs.get_total_flops()


def test_grouped_queries_count_as_much_as_one_head_of_keys_for_each_query() -> None:
    q, kv = torch.randn(2, 4, 8, 16, requires_grad=True), torch.randn(2, 2, 8, 16, requires_grad=True)
    result = count(nn.Identity(), lambda: F.scaled_dot_product_attention(q, kv, kv, enable_gqa=True).sum().backward())
    product = 2 * 2 * 4 * 8 * 8 * 16
    assert (result.forward_flops, result.backward_flops) == (2 * product, 4 * product)


def test_convolutions_in_groups_and_recurrent_layers_are_counted() -> None:
    convolution = nn.Conv2d(4, 8, 3, groups=2)
    x = torch.randn(2, 4, 10, 10, requires_grad=True)
    result = count(convolution, lambda: convolution(x).sum().backward())
    forward = 2 * (2 * 8 * 8 * 8) * (2 * 3 * 3)  # a product and a sum for each output and each of its weights
    assert by_module(result) == {'': (forward, 2 * forward, 0)}
    recurrent = nn.LSTM(8, 16)
    steps = torch.randn(5, 3, 8, requires_grad=True)
    result = count(recurrent, lambda: recurrent(steps)[0].sum().backward())
    forward = 2 * 5 * 3 * 4 * 16 * (8 + 16)
    assert by_module(result) == {'': (forward, 2 * forward, 0)}


def test_inference_mode_is_counted_though_torch_decomposes_nothing_there() -> None:
    linear, convolution = nn.Linear(4, 6), nn.Conv1d(2, 3, 2)
    x = torch.randn(2, 4, 5)

    def run() -> None:
        before = torch.get_rng_state()
        with torch.inference_mode():
            linear(torch.ones(7, 4))
            convolution(torch.ones(1, 2, 9))
            torch.einsum('bij,jk->bik', x, torch.ones(5, 6))
            x @ torch.ones(5, 6)
        assert torch.equal(torch.get_rng_state(), before)

    result = count(nn.ModuleList([linear, convolution]), run)
    flops = {row.name: row.flops for row in result.operations}
    product = 2 * 2 * 4 * 5 * 6
    assert flops == {
        'aten.linear': 2 * 7 * 4 * 6,
        'aten.conv1d': 2 * 8 * 3 * 2 * 2,
        'aten.einsum': product,
        'aten.matmul': product,
    }


@pytest.mark.parametrize('lengths', [[10, 10], [7, 10]], ids=['dense', 'nested'])
@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
def test_the_fused_kernels_of_transformers_in_evaluation_are_counted(mode: Any, lengths: list[int]) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 10, 16)
    padding = torch.tensor([[position >= length for position in range(10)] for length in lengths])

    def run() -> None:
        with mode():
            encoder(x, src_key_padding_mask=padding if min(lengths) < 10 else None)
            attention(x, x, x, need_weights=False)

    def products(lengths: list[int]) -> int:
        projections = 2 * sum(lengths) * 16 * (3 * 16 + 16)
        return projections + 2 * (2 * sum(length * length for length in lengths) * 16)

    feed_forward = 2 * (2 * sum(lengths) * 16 * 32)
    result = count(nn.ModuleList([encoder, attention]), run)
    assert {row.name: row.forward_flops for row in result.operations} == {
        'aten._transformer_encoder_layer_fwd': 2 * (products(lengths) + feed_forward),
        'aten._native_multi_head_attention': products([10, 10]),
    }


def test_a_product_of_complex_numbers_counts_as_four_real_ones() -> None:
    left, right = (torch.randn(*shape, dtype=torch.complex64, requires_grad=True) for shape in ((3, 4), (4, 5)))
    result = count(nn.Identity(), lambda: (left @ right).abs().sum().backward())
    assert (result.forward_flops, result.backward_flops) == (8 * 3 * 4 * 5, 2 * 8 * 3 * 4 * 5)


def test_a_convolution_of_complex_numbers_counts_as_the_three_real_ones_that_torch_computes() -> None:
    layer = nn.Conv1d(2, 3, 5, bias=False, dtype=torch.complex64)
    result = count(layer, lambda: layer(torch.randn(1, 2, 10, dtype=torch.complex64)))
    assert result.forward_flops == 3 * 2 * (6 * 3) * (2 * 5)


def test_gradients_taken_inside_of_a_forward_are_counted_as_backward_of_the_modules_that_they_pass() -> None:
    class Forces(nn.Module):
        """An energy and its gradient by the positions, as in models of molecules."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            energy = self.outer(self.inner(x).tanh()).sum()
            return energy, torch.autograd.grad(energy, x, create_graph=True)[0]

    model, x = Forces(), torch.randn(7, 4, requires_grad=True)

    def step() -> None:
        energy, force = model(x)
        (energy + force.pow(2).sum()).backward()

    result = count(model, step)
    inner, outer = 2 * 7 * 4 * 6, 2 * 7 * 6
    # The forward's gradient is one product for each layer. Backward: two for each product of the forward, and for the
    # gradient's, where the gradient that comes in from outside has none.
    assert (result.forward_flops, result.recomputed_flops) == (inner + outer, 0)
    assert result.backward_flops == (inner + outer) + 2 * (inner + outer) + (2 * inner + outer)
    rows = by_module(result)
    assert rows['inner'][1] >= inner + 2 * inner and rows['outer'][1] >= outer + 2 * outer


@pytest.mark.parametrize('use_reentrant', [False, True])
def test_what_a_checkpoint_runs_again_is_counted_as_recomputed(use_reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 16)
            self.block = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Tanh())
            self.last = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(checkpoint(self.block, self.first(x), use_reentrant=use_reentrant))

    model = Checkpointed()
    x = torch.randn(2, 8)
    result = count(model, lambda: model(x).sum().backward())
    first, inner, last = 2 * 2 * 8 * 16, 2 * 2 * 16 * 64, 2 * 2 * 16
    rows = by_module(result)
    assert rows['first'] == (first, first, 0)  # its input has no gradient
    assert rows['block.0'] == rows['block.2'] == (inner, 2 * inner, inner)
    assert rows['block'] == (2 * inner, 4 * inner, 2 * inner)
    assert rows['last'] == (last, 2 * last, 0)
    assert result.hardware_flops - result.batch_flops == result.recomputed_flops == 2 * inner


def test_the_optimizers_own_products_are_no_model_flops() -> None:
    class Orthogonal(torch.optim.SGD):
        """Computes matrix products in its step, as Muon does."""

        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            loss = super().step(closure)
            for group in self.param_groups:
                for parameter in group['params']:
                    if parameter.dim() == 2:
                        parameter.detach() @ parameter.detach().T
            return loss

    model = Regression()
    train(Flops(), model=model, optimizers=Orthogonal(model.parameters(), lr=0.01), batches=3)
    data = only()
    assert data['optimizer_flops'] == 2 * 32 * 16 * 32 + 2 * 1 * 32 * 1
    assert data['batch_flops'] == REGRESSION
    assert data['hardware_flops'] == data['batch_flops'] + data['optimizer_flops']


def test_operations_without_a_formula_are_listed_with_their_calls() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.GELU())
    result = count(model, lambda: model(torch.randn(2, 4)).sum().backward())
    untracked = {row.name: row.calls for row in result.untracked_operations}
    assert untracked['aten.gelu'] == untracked['aten.gelu_backward'] == 2
    assert result.untracked_calls == sum(untracked.values())
    assert 'aten.t' not in untracked  # a view computes nothing
    assert result.tracked_calls == 2  # forward, and the weight's gradient


def test_an_operator_of_higher_order_runs_and_is_listed() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 8, 16)
    bare = flex_attention(q, q, q)
    seen: list[Tensor] = []
    result = count(nn.Identity(), lambda: seen.append(flex_attention(q, q, q)))
    assert torch.equal(seen[0], bare)
    assert any('flex_attention' in row.name for row in result.untracked_operations)


def test_flash_attentions_operators_count_as_torchs_attention_does() -> None:
    q, few = torch.empty(2, 10, 4, 8, device='meta'), torch.empty(2, 12, 2, 8, device='meta')
    forward = 2 * (2 * 4 * 10 * 12) * (8 + 8)
    settings = (0.0, 1.0, True, -1, -1, 0.0, None)
    assert operators.forward is not None, 'they are registered'
    registered = torch.ops.flash_attn
    found = formulas.count(registered._flash_attn_forward.default, (q, few, few, *settings, False), {}, None)
    assert found == formulas.Count(forward)
    gradients = (q, few, few)
    arguments = (q, q, few, few, q, q, *gradients, *settings, False)
    found = formulas.count(registered._flash_attn_backward.default, arguments, {}, None)
    assert found == formulas.Count(2 * forward, recomputed=forward // 2)
    # two sequences: their lengths are on the device, and taken to be the same
    q, few, first = q.flatten(0, 1), few.flatten(0, 1), torch.empty(3, dtype=torch.int32, device='meta')
    lengths = (first, first, 10, 12)
    found = formulas.count(registered._flash_attn_varlen_forward.default, (q, few, few, *lengths, *settings), {}, None)
    assert found == formulas.Count(forward)
    arguments = (q, q, few, few, q, q, q, few, few, *lengths, *settings, False)
    found = formulas.count(registered._flash_attn_varlen_backward.default, arguments, {}, None)
    assert found == formulas.Count(2 * forward, recomputed=forward // 2)


def test_flash_attention_3s_operators_count_as_torchs_attention_does() -> None:
    q, few = torch.empty(2, 10, 4, 8, device='meta'), torch.empty(2, 12, 2, 8, device='meta')
    forward = 2 * (2 * 4 * 10 * 12) * (8 + 8)
    assert operators_3.forward is not None, 'they are registered'
    registered = torch.ops.flash_attn_3
    for first in (None, torch.empty(3, dtype=torch.int32, device='meta')):
        if first is not None:  # two sequences
            q, few = q.flatten(0, 1), few.flatten(0, 1)
        found = formulas.count(
            registered._flash_attn_forward.default, (q, few, few, *[None] * 4, first, first), {}, None
        )
        assert found == formulas.Count(forward)
        arguments = (q, q, few, few, q, q, first, first)
        found = formulas.count(registered._flash_attn_backward.default, arguments, {}, None)
        assert found == formulas.Count(2 * forward, recomputed=forward // 2)
