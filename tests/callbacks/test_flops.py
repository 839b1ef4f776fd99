"""Flops: counts match calculations by hand, times are right, and training is not changed."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest
import torch
from composer import Trainer
from composer.core import Callback, State
from composer.loggers import InMemoryLogger, Logger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _python_dispatch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from composer_memprof import Flops, FSDPMemTracker, SavedTensorsHook
from composer_memprof.analysis.flops.gpt_formula import find_shape, fits_weights, formula_flops
from composer_memprof.callbacks.flops import count_apart
from composer_memprof.callbacks.flops.device_peak import find_peak
from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.flops.matmul_peak import matmul_peak
from composer_memprof.recorders.flops.recorder import FlopsRecorder
from composer_memprof.recorders.flops.result import BatchFlops
from composer_memprof.recorders.flops.without_data import backward, count_without_data
from tests.conftest import FEATURES, Regression, entries, loader, make_trainer, train

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 32, 4, 2, 24, 8
counts_compiled = pytest.mark.skipif(torch.cuda.is_available(), reason='beside a GPU compiled models are only timed')
#: FLOPs of one batch of Regression: a layer of 16 to 32, whose input has no gradient, and one of 32 to 1.
LAYER_1, LAYER_2 = 2 * 8 * FEATURES * 32, 2 * 8 * 32 * 1
REGRESSION = 2 * LAYER_1 + 3 * LAYER_2


def gpt_flops(batch: int = BATCH, length: int = LENGTH) -> dict[str, int]:
    """ByteGPT's matrix products, one by one: 2 m n k each."""
    tokens = batch * length
    qkv = 2 * tokens * WIDTH * 3 * WIDTH
    scores = 2 * batch * HEADS * length * length * (WIDTH // HEADS)
    values = scores
    out = 2 * tokens * WIDTH * WIDTH
    up = 2 * tokens * WIDTH * 4 * WIDTH
    down = 2 * tokens * 4 * WIDTH * WIDTH
    head = 2 * tokens * WIDTH * 256
    forward = LAYERS * (qkv + scores + values + out + up + down) + head
    # The gradient of each of a product's two factors is a product of the same size. Scores are computed again.
    return {'forward': forward, 'backward': 2 * forward, 'again': LAYERS * scores, 'up': up}


def gpt() -> ByteGPT:
    torch.manual_seed(3)
    return ByteGPT(d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_seq_len=64)


def texts(lengths: list[int]) -> DataLoader:
    """One batch of sequences for each of ``lengths``."""
    torch.manual_seed(5)
    rows = [torch.randint(0, 256, (length + 1,)) for length in lengths for _ in range(BATCH)]
    samples: Any = [{'input_ids': row[:-1], 'labels': row[1:]} for row in rows]
    return DataLoader(samples, batch_size=BATCH)


def train_gpt(*callbacks: Any, batches: int = 4, length: int = LENGTH, **more: Any) -> Trainer:
    return train(*callbacks, model=gpt(), train_dataloader=texts([length] * batches), **more)


def count(model: nn.Module, run: Callable[[], Any]) -> BatchFlops:
    with FlopsRecorder(model) as recorder:
        run()
    assert recorder.error is None and recorder.result is not None
    result = recorder.result
    outside = [row for row in result.modules if row.name.startswith('(')]
    root = next((row for row in result.modules if row.name == ''), None)
    assert sum(row.flops for row in [*outside, *([root] if root else [])]) == result.batch_flops
    assert sum(row.own_flops for row in result.modules) == result.batch_flops
    assert sum(row.flops for row in result.operations) == result.batch_flops
    return result


def by_module(result: BatchFlops) -> dict[str, tuple[int, int, int]]:
    return {row.name: (row.forward_flops, row.backward_flops, row.recomputed_flops) for row in result.modules}


def written(pattern: str = '*flops*.json', folder: Path = Path('test-run/memprof')) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(pattern))]


def only(pattern: str = '*flops*.json') -> dict[str, Any]:
    (data,) = written(pattern)
    return data


class Logged(InMemoryLogger):
    """What was logged, as ``{name: {batch: value}}``."""

    def of(self, name: str) -> dict[int, float]:
        return {int(timestamp.batch): value for timestamp, value in self.data.get(name, [])}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    torch._dynamo.reset()  # so that Flops sees a process that has compiled nothing
    yield
    assert not _python_dispatch._get_current_dispatch_mode_stack()
    assert not nn.modules.module._global_forward_hooks
    assert torch._dynamo.eval_frame._stance.stance == 'default'
    assert not any(
        'composer_memprof' in str(getattr(key, '__module__', ''))
        for operator in torch._ops._higher_order_ops.values()
        for key in operator.python_key_table
    )


# -- counted by hand ----------------------------------------------------------------------------------------------


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


def test_the_formula_is_within_five_percent_of_the_trace() -> None:
    train_gpt(Flops())
    data = only()
    assert data['formula']['batch_flops'] == pytest.approx(data['batch_flops'], rel=0.05)
    assert 'Megatron' in data['formula']['source']
    assert (data['formula']['sequences'], data['formula']['length']) == (BATCH, LENGTH)


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


# -- the formula --------------------------------------------------------------------------------------------------


def config(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(config=SimpleNamespace(**values))


LLAMA = {
    'model_type': 'llama', 'num_hidden_layers': 2, 'hidden_size': 64, 'num_attention_heads': 8,
    'num_key_value_heads': 2, 'intermediate_size': 160, 'vocab_size': 100, 'hidden_act': 'silu',
}  # fmt: skip


def test_grouped_queries_and_a_gated_feed_forward_part_are_in_the_formula() -> None:
    shape = find_shape(config(**LLAMA))
    assert shape is not None and (shape.kv_heads, shape.head_width, shape.gated) == (2, 8, True)
    tokens, length = 3 * 10, 10
    attention = 2 * 64 * 64 + 2 * (2 * 64 * 16) + 2 * 64 * 64 + 2 * (2 * length * 64)
    forward = tokens * (2 * (attention + 3 * 2 * 64 * 160) + 2 * 64 * 100)
    assert formula_flops(shape, 3, length).batch_flops == 3 * forward
    assert formula_flops(shape, 3, length, training=False).batch_flops == forward


def test_each_token_counts_for_the_experts_that_it_goes_to() -> None:
    dense, moe = (find_shape(config(**LLAMA, **more)) for more in ({}, {'num_experts': 8, 'num_experts_per_tok': 2}))
    assert dense is not None and moe is not None
    tokens = 3 * 10
    expert, router = 3 * 2 * 64 * 160, 2 * 64 * 8
    more = formula_flops(moe, 3, 10).batch_flops - formula_flops(dense, 3, 10).batch_flops
    assert more == 3 * tokens * 2 * (expert + router)


def test_recomputation_is_hardware_flops_of_the_formula() -> None:
    shape = find_shape(config(**LLAMA, gradient_checkpointing=True))
    assert shape is not None
    found = formula_flops(shape, 1, 10)
    head = 2 * 10 * 64 * 100
    assert found.hardware_flops - found.batch_flops == found.batch_flops // 3 - head


@pytest.mark.parametrize(
    'model',
    [
        SimpleNamespace(n_layers=2, d_model=64, n_heads=8),
        SimpleNamespace(model=SimpleNamespace(config={'n_layer': 2, 'n_embd': 64, 'n_head': 8})),
        SimpleNamespace(cfg={'num_layers': 2, 'hidden_size': 64, 'num_attention_heads': 8}),
        config(n_layers=2, d_model=64, n_heads=8, attn_config={'kv_n_heads': 8}, expansion_ratio=4),
    ],
    ids=['attributes', 'nanoGPT', 'Megatron', 'MPT'],
)
def test_the_shape_is_found_under_the_names_of_several_libraries(model: Any) -> None:
    shape = find_shape(model)
    assert shape is not None
    assert (shape.layers, shape.width, shape.heads, shape.kv_heads, shape.ffn_width) == (2, 64, 8, 8, 256)


class Classifier(ByteGPT):
    """A head of two classes in place of the vocabulary's, as BERT's classifiers have."""

    def __init__(self) -> None:
        super().__init__(d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_seq_len=64)
        self.head = nn.Linear(WIDTH, 2)  # type: ignore[assignment]

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch['labels'].flatten() % 2)


class WithEncoder(ByteGPT):
    """Further layers that the config's ``n_layers`` does not count, as in T5."""

    def __init__(self) -> None:
        super().__init__(d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_seq_len=64)
        self.encoder = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))

    def forward(self, batch: Any) -> Tensor:
        return super().forward(batch) + self.encoder(torch.ones(*batch['input_ids'].shape, WIDTH)).sum()


@pytest.mark.parametrize('kind', [Classifier, WithEncoder])
@pytest.mark.parametrize('settings', [{}, {'compile_config': {'backend': 'aot_eager'}}], ids=['eager', 'compiled'])
def test_a_model_that_the_formula_does_not_fit_has_none(kind: type[ByteGPT], settings: dict[str, Any]) -> None:
    logged = Logged()
    train(Flops(), model=kind(), train_dataloader=texts([LENGTH] * 3), loggers=[logged], **settings)
    data = only()
    assert data['batch_flops'] and data['formula'] is None
    assert not logged.of('flops/batch_flops_from_formula') and not logged.of('flops/mfu_from_formula')


def test_until_a_batch_is_counted_the_weights_decide_whether_the_formula_fits() -> None:
    model = gpt()
    shape = find_shape(model)
    assert shape is not None and fits_weights(shape, model)
    assert not fits_weights(shape, Classifier()) and not fits_weights(shape, WithEncoder())
    experts = find_shape(config(**LLAMA, num_experts=8, num_experts_per_tok=2))
    assert experts is not None and not fits_weights(experts, model)


def test_a_model_without_a_known_shape_has_no_formula() -> None:
    assert find_shape(Regression()) is None
    logged = Logged()
    train(Flops(), batches=3, loggers=[logged])
    assert only()['formula'] is None
    assert not logged.of('flops/mfu_from_formula')


# -- in a Trainer -------------------------------------------------------------------------------------------------


def test_rates_are_logged_every_five_batches_and_constants_once() -> None:
    logged = Logged()
    train_gpt(Flops(peak_flops=1e12), batches=12, loggers=[logged])
    flops = 3 * gpt_flops()['forward']
    assert logged.of('flops/batch_flops') == {1: flops}
    assert logged.of('flops/batch_flops_all_ranks_estimate') == {1: flops}
    assert logged.of('flops/total_flops') == logged.of('flops/peak_flops_per_sec') == {1: 1e12}
    for name in ('mfu', 'actual_batches_per_sec', 'max_batches_per_sec', 'mfu_from_formula'):
        assert set(logged.of(f'flops/{name}')) == {2, 5, 10}, name
    for name in ('batch_flops_from_formula', 'tracked_operations', 'untracked_operations'):
        assert set(logged.of(f'flops/{name}')) == {1}, name
    rate = logged.of('flops/actual_batches_per_sec')[10]
    assert logged.of('flops/mfu')[10] == pytest.approx(flops * rate / 1e12)
    assert logged.of('flops/max_batches_per_sec')[10] == pytest.approx(1e12 / flops)


def test_the_interval_of_logging_can_be_set() -> None:
    logged = Logged()
    train(Flops(log_every_n_batches=4), batches=9, loggers=[logged])
    assert set(logged.of('flops/mfu')) == {2, 4, 8}


def test_a_window_writes_json_and_a_table() -> None:
    train(Flops(peak_flops=5e11, schedule={'skip': '2ba', 'active': '4ba'}), batches=8)
    data = only('rank0.6.flops.json')
    assert (data['rank'], data['epoch'], data['batch'], data['stage'], data['world_size']) == (0, 0, 6, 'train', 1)
    batches = data['batches']
    assert (batches['all'], batches['traced'], batches['timed']) == (4, 1, 3)
    assert data['batch_flops'] == REGRESSION
    assert data['device']['peak_source'] == 'peak_flops, as given'
    assert data['mfu'] == pytest.approx(REGRESSION * data['actual_batches_per_sec'] / 5e11)
    assert data['seconds'] == pytest.approx(3 / data['actual_batches_per_sec'])
    text = Path('test-run/memprof/rank0.6.flops.txt').read_text()
    for words in ('aten.addmm', 'net.2', 'MFU', 'aten.relu'):
        assert words in text
    assert {entry.kind for entry in entries(Path('test-run'))} == {'flops', 'flops.table'}


def test_a_later_window_uses_the_trace_of_an_earlier_one() -> None:
    logged = Logged()
    train(Flops(schedule={'active': '1ba', 'every': '3ba'}), batches=9, loggers=[logged])
    traced = {data['batch']: data['batches']['traced'] for data in written()}
    assert traced == {1: 1, 4: 0, 7: 0}
    assert all(data['batch_flops'] == REGRESSION for data in written())
    assert set(logged.of('flops/mfu')) == {4, 7}


def test_each_shape_is_traced_once() -> None:
    logged = Logged()
    data = texts([24, 24, 12, 24, 12, 12])
    train(Flops(log_every_n_batches=1), model=gpt(), train_dataloader=data, loggers=[logged])
    long, short = (3 * gpt_flops(length=length)['forward'] for length in (24, 12))
    assert logged.of('flops/batch_flops') == {1: long, 3: short, 4: long, 5: short}, 'when it has changed'
    found = only()
    assert (found['batches']['traced'], found['batches']['timed']) == (2, 4)
    shapes = found['batches']['shapes']
    assert [(row['batches'], row['batch_flops'], row['traced_at']) for row in shapes] == [(3, long, 1), (3, short, 3)]
    assert found['mfu'] == pytest.approx((2 * long + 2 * short) / found['seconds'] / found['device']['peak_flops'])


def test_the_next_window_counts_again_after_layers_were_frozen() -> None:
    class Freeze(Callback):
        def batch_end(self, state: State, logger: Logger) -> None:
            if state.timestamp.batch.value == 2:
                state.model.net[0].requires_grad_(False)

    train(Flops(schedule={'active': '2ba', 'every': '3ba'}), Freeze(), batches=5)
    first, second = written()
    assert first['batch_flops'] == REGRESSION
    assert second['batch_flops'] == LAYER_1 + 2 * LAYER_2  # only the last layer's weight


def test_evaluation_and_prediction_are_counted_too() -> None:
    logged = Logged()
    trainer = make_trainer(
        Flops(stages=['train', 'eval', 'predict']), batches=6, eval_dataloader=loader(3), eval_interval='3ba',
        loggers=[logged],
    )  # fmt: skip
    trainer.fit()
    trainer.predict(loader(2))
    trainer.close()
    found = [(data['stage'], data['batch_flops'], data['batches']['traced']) for data in written()]
    forward = LAYER_1 + LAYER_2
    assert found.count(('train', REGRESSION, 1)) == 1
    assert found.count(('train', REGRESSION, 0)) == 1
    assert found.count(('eval', forward, 1)) == found.count(('eval', forward, 0)) == 1
    assert found.count(('predict', forward, 1)) == 1
    assert logged.of('flops/batch_flops')[1] == REGRESSION
    assert logged.of('flops/eval/batch_flops')[3] == logged.of('flops/predict/batch_flops')[6] == forward


def test_the_metrics_of_an_evaluation_without_training_have_no_prefix() -> None:
    logged = Logged()
    train(Flops(stages='eval'), batches=2, eval_dataloader=loader(3), eval_interval='1ep', loggers=[logged])
    assert set(logged.of('flops/batch_flops').values()) == {LAYER_1 + LAYER_2}
    assert logged.of('flops/mfu')


def test_the_time_of_an_evaluation_does_not_count_as_training() -> None:
    class Clock(Callback):
        """Its evaluation takes a day."""

        def __init__(self, flops: Flops) -> None:
            self.flops = flops

        def eval_batch_start(self, state: State, logger: Logger) -> None:
            if self.flops._stopwatch._since is not None:
                self.flops._stopwatch._since -= 86400

    flops = Flops()
    train(flops, Clock(flops), batches=6, eval_dataloader=loader(1), eval_interval='2ba')
    assert only()['seconds'] < 86400


def test_on_a_cpu_the_peak_is_measured_in_the_models_dtype_and_the_report_says_so() -> None:
    train(Flops(), batches=3)
    device = only()['device']
    assert device['peak_source'].startswith('measured') and 'float32' in device['peak_source']
    assert device['peak_flops'] > 0
    before = torch.get_rng_state()
    assert matmul_peak(torch.float64) > 0
    assert torch.equal(torch.get_rng_state(), before)
    halves = SimpleNamespace(device=SimpleNamespace(name='cpu'), precision=None, model=Regression().to(torch.bfloat16))
    assert 'bfloat16' in find_peak(halves, None).source  # type: ignore[arg-type]


# -- training is not changed --------------------------------------------------------------------------------------


def losses(*callbacks: Any, **more: Any) -> list[float]:
    logged = Logged()
    train_gpt(*callbacks, batches=5, loggers=[logged], **more)
    return list(logged.of('loss/train/total').values())


def test_losses_are_bit_identical() -> None:
    bare = losses()
    assert len(bare) == 5
    assert losses(Flops()) == bare
    assert losses(Flops(schedule={'active': '1ba', 'every': '2ba'}), device_train_microbatch_size=2) == losses(
        device_train_microbatch_size=2
    )


def test_all_recorders_can_record_the_same_batch() -> None:
    together = {'skip': '1ba', 'active': '1ba'}
    for order in (1, -1):
        callbacks = [Flops(schedule=together), FSDPMemTracker(schedule=together), SavedTensorsHook(schedule=together)]
        folder = f'order{order}'
        for callback in callbacks:
            callback.output = type(callback.output)(**{**vars(callback.output), 'folder': folder})
        assert losses(*callbacks[::order]) == losses()
        (found,) = written(folder=Path(folder))
        assert found['batch_flops'] == 3 * gpt_flops()['forward']
        kinds = {entry.kind for entry in entries(Path(folder))}
        assert {'flops', 'fsdp_mem_tracker', 'saved_tensors_hook'} <= kinds


@counts_compiled
@pytest.mark.parametrize('how', ['whole', 'in place', 'in part'])
def test_a_compiled_model_is_counted_without_running_it_uncompiled(how: str) -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    model = gpt()
    settings: dict[str, Any] = {}
    if how == 'whole':
        settings['compile_config'] = {'backend': backend}
    elif how == 'in place':
        model.blocks[0].compile(backend=backend)
    else:
        model.blocks[1] = torch.compile(model.blocks[1], backend=backend)
    logged = Logged()
    train(Flops(), model=model, train_dataloader=texts([LENGTH] * 4), batches=4, loggers=[logged], **settings)
    data, expected = only(), gpt_flops()
    assert (data['forward_flops'], data['backward_flops']) == (expected['forward'], expected['backward'])
    assert data['recomputed_flops'] == expected['again']
    assert {row['name']: row['forward_flops'] for row in data['modules']}['blocks.1.up'] == expected['up']
    assert (data['batches']['traced'], data['batches']['timed'], data['notes']) == (1, 3, [])
    assert logged.of('flops/mfu') and data['formula']['batch_flops'] == pytest.approx(data['batch_flops'], rel=0.05)
    once = len(compiled)
    compiled.clear()
    torch._dynamo.reset()
    train(model=_compiled_like(how, backend), train_dataloader=texts([LENGTH] * 4), batches=4, **settings)
    assert len(compiled) == once, 'as often as without it'


def _compiled_like(how: str, backend: Any) -> ByteGPT:
    model = gpt()
    if how == 'in place':
        model.blocks[0].compile(backend=backend)
    elif how == 'in part':
        model.blocks[1] = torch.compile(model.blocks[1], backend=backend)
    return model


class Random(Regression):
    """Draws random numbers, has statistics, and counts its calls, in three libraries' ways."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 1))
        self.calls = 0

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        self.calls += 1
        return super().loss(outputs, batch) * (1 + random.random() + np.random.random() + self.calls)


@counts_compiled
def test_counting_a_compiled_model_changes_no_number_of_its_training() -> None:
    def run(*callbacks: Any) -> tuple[dict[int, float], list[Tensor]]:
        torch._dynamo.reset()
        torch.manual_seed(1)
        logged, model = Logged(), Random()
        hooked: list[type] = []
        model.net[0].register_forward_hook(lambda module, inputs, output: hooked.append(type(output)))
        train(*callbacks, model=model, loggers=[logged], compile_config={'backend': 'aot_eager'}, batches=6)
        assert set(hooked) <= {Tensor}, 'the copy has no hooks of the user'
        return logged.of('loss/train/total'), [*model.parameters(), *model.buffers()]

    bare, watched = run(), run(Flops(stages=['train', 'eval']))
    assert only()['batch_flops'] == REGRESSION
    assert watched[0] == bare[0]
    assert all(map(torch.equal, watched[1], bare[1]))


@functools.lru_cache
def _cached_table(length: int) -> Tensor:
    return torch.arange(length).float().outer(torch.ones(FEATURES)) / length


_TABLES: dict[int, Tensor] = {}
_OUTPUTS: list[Tensor] = []


@torch.compiler.disable
def _keep_tensors(inputs: Tensor) -> Tensor:
    length = inputs.shape[0]
    if length not in _TABLES:
        _TABLES[length] = _cached_table(length) * 2
    _OUTPUTS.append(inputs.detach())
    return _TABLES[length] + _cached_table(length)


class Keeping(Regression):
    """Keeps tensors outside of itself, as rotary tables are kept, and prints."""

    def forward(self, batch: Any) -> Any:
        print('forward')
        return self.net(batch[0] + _keep_tensors(batch[0]))


@counts_compiled
@pytest.mark.parametrize('part', [True, False])
def test_tensors_that_a_compiled_model_keeps_anywhere_are_those_of_the_training(
    part: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(*callbacks: Any) -> tuple[dict[int, float], list[Tensor], int]:
        torch._dynamo.reset()
        _cached_table.cache_clear()
        _TABLES.clear()
        _OUTPUTS.clear()
        torch.manual_seed(1)
        capfd.readouterr()
        logged, model = Logged(), Keeping()
        if part:
            model.net.compile(backend='eager')
        train(
            *callbacks, model=model, loggers=[logged], batches=4,
            compile_config=None if part else {'backend': 'eager'},
        )  # fmt: skip
        assert {type(kept) for kept in [*_TABLES.values(), *_OUTPUTS, _cached_table(8)]} == {Tensor}
        assert len(_OUTPUTS) == 4
        return logged.of('loss/train/total'), list(model.parameters()), capfd.readouterr().out.count('forward')

    bare, watched = run(), run(Flops())
    assert only()['batch_flops'] == REGRESSION
    assert watched[0] == bare[0]
    assert all(map(torch.equal, watched[1], bare[1]))
    assert watched[2] == bare[2], 'the copy prints nothing'


def test_no_tensor_of_a_model_is_copied_to_count_it() -> None:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)
            self.teacher = {'logits': torch.ones(3, 4), 'more': [nn.Parameter(torch.ones(4))]}

        def forward(self, inputs: Tensor) -> Any:
            held = [self.teacher['logits'], *self.teacher['more']]
            assert not any(type(each) in (Tensor, nn.Parameter) and each.device.type == 'cpu' for each in held)
            seen.extend(tuple(each.shape) for each in held)
            return self.net(inputs + held[0] + held[1])

    seen: list[tuple[int, ...]] = []
    model = Holding()
    found = count_without_data(model, torch.ones(3, 4), lambda twin, batch: backward(twin, twin(batch).sum()))
    assert found.forward_flops == 2 * 3 * 4 * 2
    assert seen == [(3, 4), (4,)]
    assert model.teacher['logits'].sum() == 12


class Stuck(Regression):
    """Stops where its tensors have no data, after it has called ``first``."""

    first: Callable[[], Any] = staticmethod(lambda: None)

    def forward(self, batch: Any) -> Any:
        if type(batch[0]) is not Tensor:
            self.first()
            while True:
                signal.pause()
        return super().forward(batch)


def stuck() -> Stuck:
    model = Stuck()
    model.net.compile(backend='eager')
    return model


@counts_compiled
def test_a_count_that_does_not_end_is_ended_and_the_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = Path('pid')
    monkeypatch.setattr(Stuck, 'first', staticmethod(lambda: pid.write_text(str(os.getpid()))))
    monkeypatch.setattr(count_apart, 'TIMEOUT_S', 5.0)
    with pytest.warns(MemprofWarning, match='gave no result within 5 seconds.*compile_config=None'):
        train(Flops(), model=stuck(), batches=3)
    data = only()
    assert data['batch_flops'] is None and data['batches']['timed'] == 2
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@counts_compiled
def test_a_signal_ends_a_count_and_reaches_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    training = os.getpid()
    monkeypatch.setattr(Stuck, 'first', staticmethod(lambda: os.kill(training, signal.SIGINT)))
    monkeypatch.setattr(count_apart, 'TIMEOUT_S', 3600.0)
    trainer = make_trainer(Flops(), model=stuck(), batches=3)
    with pytest.warns(MemprofWarning, match='a signal ended the process'), pytest.raises(SystemExit):
        trainer.fit()
    trainer.close()


def test_a_compiled_model_on_a_device_is_only_timed() -> None:
    with pytest.raises(count_apart.CountError, match='torch cannot compute beside a GPU'):
        count_apart.count_apart(nn.Linear(4, 2, device='meta'), torch.ones(3, 4), lambda model, batch: model(batch))


@counts_compiled
def test_other_recorders_do_not_see_the_copy_of_a_compiled_model() -> None:
    first = {'active': '1ba'}
    train_gpt(Flops(), SavedTensorsHook(schedule=first), compile_config={'backend': 'aot_eager'})
    (with_flops,) = written('*saved_tensors*.json')
    torch._dynamo.reset()
    train_gpt(SavedTensorsHook(schedule=first, folder='alone'), compile_config={'backend': 'aot_eager'})
    (alone,) = written('*saved_tensors*.json', folder=Path('alone'))
    assert with_flops['total_bytes'] == alone['total_bytes']


@counts_compiled
def test_a_compiled_models_evaluation_is_counted_too() -> None:
    train(Flops(stages=['eval']), batches=2, eval_dataloader=loader(3), compile_config={'backend': 'aot_eager'})
    assert {data['batch_flops'] for data in written()} == {LAYER_1 + LAYER_2}


@counts_compiled
def test_a_compiled_model_that_reads_its_tensors_is_timed_and_the_reason_is_said() -> None:
    class Reads(ByteGPT):
        def loss(self, outputs: Any, batch: Any) -> Tensor:
            loss = super().loss(outputs, batch)
            return loss * 2 if loss.item() > 0 else loss

    torch.manual_seed(3)
    model = Reads(d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_seq_len=64)
    logged = Logged()
    with pytest.warns(MemprofWarning, match='no uncompiled copy of it could be counted.*compile_config=None'):
        train(
            Flops(), model=model, train_dataloader=texts([LENGTH] * 4), loggers=[logged],
            compile_config={'backend': 'aot_eager'},
        )  # fmt: skip
    data = only()
    assert data['batch_flops'] is None and data['mfu'] is None and data['modules'] is None
    assert data['batches']['timed'] == 3
    assert data['formula']['batch_flops'] == 3 * gpt_flops()['forward'], "its weights are the formula's"
    assert logged.of('flops/mfu_from_formula') and not logged.of('flops/mfu')
    assert 'torch.compile' in Path('test-run/memprof/rank0.4.flops.txt').read_text()


def test_a_compiled_function_is_compiled_before_the_trace_and_used_in_it() -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    class WithFunction(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.function = torch.compile(lambda x: (x @ x.T).sum(), backend=backend)

        def loss(self, outputs: Any, batch: Any) -> Tensor:
            return super().loss(outputs, batch) + self.function(outputs) * 1e-3

    model = WithFunction()
    train(Flops(), model=model, batches=4)
    (shape,) = only()['batches']['shapes']
    assert shape['traced_at'] == 2
    assert len(compiled) == 1


def test_a_function_first_called_in_a_trace_is_compiled_afterwards() -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    function = torch.compile(lambda x: (x @ x).sin(), backend=backend)
    result = count(nn.Identity(), lambda: function(torch.ones(3, 3)))
    assert result.batch_flops == 2 * 27
    assert not compiled
    function(torch.ones(3, 3))
    assert len(compiled) == 1


def test_two_of_them_count_the_same() -> None:
    train(Flops(), Flops(), batches=3)
    first, second = written()
    assert first['batch_flops'] == second['batch_flops'] == REGRESSION


def test_an_exception_in_the_traced_batch_passes_through_and_no_hooks_are_left() -> None:
    class Failing(Regression):
        def loss(self, outputs: Any, batch: Any) -> Tensor:
            raise ZeroDivisionError('of the user')

    trainer = make_trainer(Flops(), model=Failing(), batches=3)
    with pytest.raises(ZeroDivisionError, match='of the user'):
        trainer.fit()
    trainer.close()
    assert only()['batch_flops'] is None


def test_a_bug_of_ours_does_not_reach_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError('a bug of ours')

    monkeypatch.setattr(FlopsRecorder, '_phase', fail)
    with pytest.warns(MemprofWarning, match='is disabled.*a bug of ours'):
        trainer = train(Flops(), batches=4)
    assert trainer.state.timestamp.batch.value == 4


def test_a_batch_that_runs_again_counts_once() -> None:
    class Shrink(Callback):
        """Runs out of memory once, so that automatic microbatching tries the batch again in smaller parts."""

        tried = False

        def after_forward(self, state: State, logger: Logger) -> None:
            if not self.tried:
                self.tried = True
                state.auto_microbatching = True
                raise RuntimeError('CUDA out of memory')

        def batch_end(self, state: State, logger: Logger) -> None:
            state.auto_microbatching = False

    train(Flops(), Shrink(), batches=2)
    data = only()
    assert data['batch_flops'] == REGRESSION
    assert {row['name']: row['calls'] for row in data['modules']}[''] == 2


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'peak_flops': 0}, 'peak_flops must be FLOPs per second above 0, as 312e12, not 0'),
        ({'peak_flops': '312e12'}, "peak_flops must be FLOPs per second above 0, as 312e12, not '312e12'"),
        ({'peak_flops': float('nan')}, 'peak_flops must be FLOPs per second above 0, as 312e12, not nan'),
        ({'peak_flops': True}, 'peak_flops must be FLOPs per second above 0, as 312e12, not True'),
        ({'log_every_n_batches': 0}, 'log_every_n_batches must be a whole number from 1, not 0'),
        ({'log_every_n_batches': 2.5}, 'log_every_n_batches must be a whole number from 1, not 2.5'),
        ({'stages': ['tran']}, "'tran'"),
        ({'folder': '{batches}'}, '{batches}'),
        ({'schedule': {'activ': '1ba'}}, 'activ'),
    ],
)
def test_a_wrong_parameter_is_refused_at_construction(arguments: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        Flops(**arguments)
    assert words in str(caught.value)
    assert '\n' not in str(caught.value)


def test_one_callback_serves_several_trainers() -> None:
    flops: Optional[Flops] = Flops()
    for name in ('one', 'two'):
        train(flops, batches=3, run_name=name)
        (data,) = written(folder=Path(name) / 'memprof')
        assert data['batches']['traced'] == 1
