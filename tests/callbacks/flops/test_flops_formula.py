"""Flops: the formula for transformers, and the models that it fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from composer_memprof import Flops
from composer_memprof.analysis.flops.gpt_formula import find_shape, fits_weights, formula_flops
from composer_memprof.examples.byte_gpt import ByteGPT
from tests.conftest import Regression, train
from tests.support.callbacks.flops import BATCH, HEADS, LAYERS, LENGTH, WIDTH, Logged, gpt, only, texts, train_gpt


def test_the_formula_is_within_five_percent_of_the_trace() -> None:
    train_gpt(Flops())
    data = only()
    assert data['formula']['batch_flops'] == pytest.approx(data['batch_flops'], rel=0.05)
    assert 'Megatron' in data['formula']['source']
    assert (data['formula']['sequences'], data['formula']['length']) == (BATCH, LENGTH)


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
