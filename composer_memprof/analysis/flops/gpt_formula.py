"""The FLOPs of a GPT-style model by formula, from its sizes, which are read from its attributes or its config.

Source: the sum over all matrix products of Megatron-LM's ``num_floating_point_operations`` (Narayanan et al. 2021,
"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 5.1). Attention is counted in
full and recomputation is not, as for the MFU of PaLM (Chowdhery et al. 2022, appendix B). A backward pass counts as two
forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Optional

from torch import nn

SOURCE = 'Megatron-LM num_floating_point_operations, without recomputation as in PaLM appendix B; full attention'

_LAYERS = ('n_layers', 'num_hidden_layers', 'n_layer', 'num_layers')
_WIDTH = ('d_model', 'hidden_size', 'n_embd', 'n_embed', 'dim')
_HEADS = ('n_heads', 'num_attention_heads', 'n_head', 'num_heads')
_KV_HEADS = ('kv_n_heads', 'num_key_value_heads', 'num_query_groups', 'n_kv_heads', 'num_kv_heads')
_HEAD_WIDTH = ('head_dim', 'kv_channels')
_FFN = ('ffn_hidden_size', 'intermediate_size', 'n_inner', 'ffn_dim', 'd_ff')
_VOCABULARY = ('padded_vocab_size', 'vocab_size')
_EXPERTS = ('moe_num_experts', 'num_local_experts', 'num_moe_experts', 'n_routed_experts', 'num_experts')
_TOP_K = ('moe_top_k', 'num_experts_per_tok', 'moe_router_topk', 'num_experts_per_token')
_EXPERT_FFN = ('moe_intermediate_size', 'moe_ffn_hidden_size')
_GATED = ('swiglu', 'gated_linear_unit', 'gated')
_ACTIVATION = ('hidden_act', 'hidden_activation', 'activation_function', 'ffn_type', 'act_fn')
_RECOMPUTED = ('consider_activation_recompute', 'activation_checkpointing', 'gradient_checkpointing')
#: By how much the formula and the model may differ.
_TOLERANCE = 0.05
#: Sections of configs that may contain the names above.
_SECTIONS = ('attn_config', 'ffn_config')
#: Attributes of a wrapper that may be the model itself, and attributes of a model that may be its config.
_INNER_MODELS = ('module', 'model', '_orig_mod', 'net', 'transformer')
_CONFIGS = ('config', 'cfg', 'hparams')
#: Model families with a gated feed-forward part, even if the name of the activation does not show it.
_GATED_FAMILIES = ('gemma', 'llama', 'mistral', 'mixtral', 'qwen', 'phi3', 'olmo', 'deepseek')


@dataclass(frozen=True)
class GPTShape:
    """The sizes of a decoder.

    Args:
        layers (int): all layers.
        width (int): of the hidden state.
        heads (int): attention heads.
        kv_heads (int): heads of keys and values; fewer than ``heads`` with grouped-query attention.
        head_width (int): of one head.
        ffn_width (int): of a dense layer's feed-forward part.
        gated (bool): True if the feed-forward part has three matrices (such as SwiGLU) instead of two.
        vocabulary (int): number of tokens.
        moe_layers (int): layers with experts instead of a dense feed-forward part.
        experts (int): per such layer.
        top_k (int): experts that process each token.
        expert_width (int): of an expert's feed-forward part.
        shared_experts (int): further experts that process all tokens.
        recomputes (bool): True if the backward pass runs the layers' forward pass again.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    gated: bool
    vocabulary: int
    moe_layers: int = 0
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    shared_experts: int = 0
    recomputes: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class FormulaFlops:
    """The FLOPs of one batch; ``hardware_flops`` include the recomputed forward pass of the layers."""

    batch_flops: int
    hardware_flops: int


def formula_flops(shape: GPTShape, sequences: int, length: int, *, training: bool = True) -> FormulaFlops:
    """The FLOPs of a batch of ``sequences`` of ``length`` tokens: forward, and backward if ``training``."""
    attention_width = shape.heads * shape.head_width
    projections = 2 * shape.width * (2 * attention_width + 2 * shape.kv_heads * shape.head_width)
    scores_and_values = 2 * 2 * length * attention_width
    matrices = 3 if shape.gated else 2
    dense = matrices * 2 * shape.width * shape.ffn_width
    expert = matrices * 2 * shape.width * shape.expert_width
    router = 2 * shape.width * shape.experts
    moe = (shape.top_k + shape.shared_experts) * expert + router
    layers = (
        shape.layers * (projections + scores_and_values)
        + (shape.layers - shape.moe_layers) * dense
        + shape.moe_layers * moe
    )
    head = 2 * shape.width * shape.vocabulary
    tokens = sequences * length
    batch_flops = tokens * (layers + head) * (3 if training else 1)
    recomputed = tokens * layers if training and shape.recomputes else 0
    return FormulaFlops(batch_flops, batch_flops + recomputed)


def agree(by_formula: int, counted: int) -> bool:
    """Whether the two are within 5 %: what a formula leaves out (rotary embeddings, biases) is less."""
    return abs(by_formula - counted) <= counted * _TOLERANCE


def fits_weights(shape: GPTShape, model: nn.Module) -> bool:
    """Whether the formula's matrices are those of ``model``: the same number of weights, leaving out embeddings.

    An embedding that is also a layer's weight counts. Models with experts never fit: the formula has those of a token.
    """
    if shape.experts:
        return False
    attention_width, kv_width = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    in_layer = 2 * (attention_width + kv_width) + (3 if shape.gated else 2) * shape.ffn_width
    of_formula = shape.width * (shape.layers * in_layer + shape.vocabulary)
    matrices = {
        id(parameter): parameter.numel()
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.dim() == 2
    }
    return agree(of_formula, sum(matrices.values()))


def find_shape(model: Any) -> Optional[GPTShape]:
    """The sizes from the first of these that has them: the model's config, the model, models inside it. Else None."""
    for source in _sources(model):
        shape = _shape_of(source)
        if shape is not None:
            return shape
    return None


def _sources(model: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    for name in _CONFIGS:
        config = getattr(model, name, None)
        if config is not None:
            yield _Attributes(config)
    yield _Attributes(model)
    for name in _INNER_MODELS:
        inner = getattr(model, name, None)
        if depth < 3 and inner is not None:
            yield from _sources(inner, depth + 1)


class _Attributes(Mapping[str, Any]):
    """Reads the attributes or keys of an object and of its sections as one mapping."""

    def __init__(self, source: Any) -> None:
        self._sections = [source, *(self._read(source, name) for name in _SECTIONS)]

    @staticmethod
    def _read(section: Any, name: str) -> Any:
        return section.get(name) if isinstance(section, Mapping) else getattr(section, name, None)

    def __getitem__(self, name: str) -> Any:
        for section in self._sections:
            value = self._read(section, name) if section is not None else None
            if value is not None:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _shape_of(source: Mapping[str, Any]) -> Optional[GPTShape]:
    layers, width, heads = _size(source, _LAYERS), _size(source, _WIDTH), _size(source, _HEADS)
    if layers is None or width is None or heads is None:
        return None
    kv_heads = 1 if source.get('multi_query') is True else _size(source, _KV_HEADS)
    if source.get('group_query_attention') is False:
        kv_heads = heads
    ffn_width = _ffn_width(source, width)
    experts = _size(source, _EXPERTS) or 0
    top_k = _size(source, _TOP_K) or 0
    has_experts = experts > 1 and top_k > 0
    return GPTShape(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads or heads,
        head_width=_size(source, _HEAD_WIDTH) or width // heads,
        ffn_width=ffn_width,
        gated=_is_gated(source),
        vocabulary=_size(source, _VOCABULARY) or 0,
        moe_layers=_moe_layers(source, layers) if has_experts else 0,
        experts=experts if has_experts else 0,
        top_k=top_k if has_experts else 0,
        expert_width=(_size(source, _EXPERT_FFN) or ffn_width) if has_experts else 0,
        shared_experts=(_size(source, ('n_shared_experts',)) or 0) if has_experts else 0,
        recomputes=any(source.get(name) is True for name in _RECOMPUTED),
    )


def _size(source: Mapping[str, Any], names: tuple[str, ...]) -> Optional[int]:
    for name in names:
        value = source.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _ffn_width(source: Mapping[str, Any], width: int) -> int:
    given = _size(source, _FFN)
    ratio = source.get('expansion_ratio')
    if given is not None:
        return given
    return int(width * ratio) if isinstance(ratio, (int, float)) and not isinstance(ratio, bool) else 4 * width


def _moe_layers(source: Mapping[str, Any], layers: int) -> int:
    dense_first = _size(source, ('first_k_dense_replace',)) or 0
    return min(_size(source, ('num_moe_layers',)) or layers - dense_first, layers)


def _is_gated(source: Mapping[str, Any]) -> bool:
    for name in _GATED:
        if isinstance(source.get(name), bool):
            return bool(source[name])
    family = source.get('model_type')
    if isinstance(family, str) and family.lower().startswith(_GATED_FAMILIES):
        return True
    activations = [source.get(name) for name in _ACTIVATION]
    return any(isinstance(each, str) and ('glu' in each.lower() or each.lower() == 'silu') for each in activations)
