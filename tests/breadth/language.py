"""Models of Transformers with small configs: language, speech and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.breadth.row import Row, Training

_LAYERS, _WIDTH, _HEADS, _WORDS = 4, 512, 8, 8000
_BATCH, _LENGTH = 8, 256

#: Names of a config's sizes. Those that a config does not know it ignores.
_SIZES = {
    **dict.fromkeys(('hidden_size', 'n_embd', 'd_model', 'dim', 'embedding_size', 'word_embed_proj_dim'), _WIDTH),
    **dict.fromkeys(('intermediate_size', 'ffn_dim', 'd_ff', 'hidden_dim', 'n_inner'), 4 * _WIDTH),
    **dict.fromkeys(('encoder_ffn_dim', 'decoder_ffn_dim', 'ffn_hidden_size'), 4 * _WIDTH),
    **dict.fromkeys(
        ('num_hidden_layers', 'n_layer', 'n_layers', 'num_layers', 'encoder_layers', 'decoder_layers'), _LAYERS
    ),
    **dict.fromkeys(('num_attention_heads', 'n_head', 'n_heads', 'num_heads'), _HEADS),
    **dict.fromkeys(('encoder_attention_heads', 'decoder_attention_heads'), _HEADS),
    'vocab_size': _WORDS,
    'max_position_embeddings': 512,
    'pad_token_id': 0,
    'bos_token_id': 1,
    'eos_token_id': 2,
}
_TOKENS = f'{_BATCH} sequences of {_LENGTH} random tokens, their own labels'

#: Architectures of decoders, with what a small config of each needs beside the sizes.
_CAUSAL: dict[str, dict[str, Any]] = {
    'gpt2': {},
    'gptj': {'rotary_dim': 32},
    'gpt_neo': {'attention_types': [[['global', 'local'], 2]]},
    'gpt_neox': {},
    'gpt_bigcode': {},
    'codegen': {'rotary_dim': 32},
    'opt': {},
    'bloom': {},
    'falcon': {},
    'mpt': {},
    'llama': {'num_key_value_heads': 4},
    'mistral': {'num_key_value_heads': 4},
    'qwen2': {'num_key_value_heads': 4},
    'gemma': {'num_key_value_heads': 4, 'head_dim': 64},
    'gemma2': {'num_key_value_heads': 4, 'head_dim': 64},
    'phi': {},
    'phi3': {},
    'stablelm': {'num_key_value_heads': _HEADS},
    'cohere': {},
    'olmo': {},
    'starcoder2': {'num_key_value_heads': 4},
    'granite': {'num_key_value_heads': 4},
    'biogpt': {},
    'xglm': {'attention_heads': _HEADS},
}
_MASKED: dict[str, dict[str, Any]] = {
    'bert': {},
    'roberta': {'max_position_embeddings': 514},
    'distilbert': {},
    'albert': {},
    'electra': {},
    'camembert': {'max_position_embeddings': 514},
    'deberta-v2': {},
    'mobilebert': {'intra_bottleneck_size': 128},
    'xlm-roberta': {'max_position_embeddings': 514},
    'layoutlm': {},
    'nystromformer': {},
    'fnet': {},
}
_BETWEEN: dict[str, dict[str, Any]] = {
    't5': {'d_kv': 64, 'decoder_start_token_id': 0},
    'bart': {'decoder_start_token_id': 2, 'forced_eos_token_id': None},
    'mbart': {'forced_eos_token_id': None},
    'pegasus': {'decoder_start_token_id': 0, 'forced_eos_token_id': None},
    'marian': {'decoder_start_token_id': 0, 'forced_eos_token_id': None},
    'blenderbot': {'decoder_start_token_id': 1, 'forced_eos_token_id': None},
}
_PICTURES: dict[str, dict[str, Any]] = {
    'vit': {},
    'deit': {'architectures': ['DeiTForImageClassification']},  # one of the two that Transformers has for it
    'beit': {},
    'dinov2': {},
    'vit_msn': {},
    'convnext': {'hidden_sizes': [96, 192, 384, 768]},
    'resnet': {'hidden_sizes': [256, 512, 1024, 2048]},
    'regnet': {'hidden_sizes': [128, 192, 512, 1088]},
    'swin': {'num_heads': [3, 6, 12, 24], 'num_layers': 4},
    'poolformer': {'hidden_sizes': [64, 128, 320, 512]},
}


def rows() -> Iterator[Row]:
    for kinds, head in (
        (_CAUSAL, 'AutoModelForCausalLM'),
        (_MASKED, 'AutoModelForMaskedLM'),
        (_BETWEEN, 'AutoModelForSeq2SeqLM'),
    ):
        for kind, more in kinds.items():
            yield Row(
                f'transformers {kind}',
                f'Transformers, {head}, {kind}',
                _TOKENS,
                lambda k=kind, h=head, m=more: _text(k, h, m),
            )
    for kind, more in _PICTURES.items():
        source = f'Transformers, AutoModelForImageClassification, {kind}'
        yield Row(
            f'transformers {kind}',
            source,
            f'{_BATCH} random pictures of 224 by 224, random classes',
            lambda k=kind, m=more: _picture(k, m),
        )


def _made(kind: str, head: str, more: dict[str, Any]) -> torch.nn.Module:
    import transformers

    sizes = {**_SIZES, **more}
    known = vars(transformers.AutoConfig.for_model(kind)) | transformers.CONFIG_MAPPING[kind].attribute_map
    config = transformers.AutoConfig.for_model(kind, **{name: size for name, size in sizes.items() if name in known})
    config.use_cache = False
    made = getattr(transformers, head).from_config(config, attn_implementation='eager')
    return made.train()


def causal(kind: str, **sizes: Any) -> torch.nn.Module:
    """A decoder of this architecture, with further sizes if its config knows them."""
    return _made(kind, 'AutoModelForCausalLM', {**_CAUSAL.get(kind, {}), **sizes})


def masked(kind: str) -> torch.nn.Module:
    """An encoder of this architecture, with its head for masked words."""
    return _made(kind, 'AutoModelForMaskedLM', _MASKED.get(kind, {}))


def _text(kind: str, head: str, more: dict[str, Any]) -> Training:
    tokens = torch.randint(3, _WORDS, (_BATCH, _LENGTH))
    return Training(_made(kind, head, more), {'input_ids': tokens, 'labels': tokens}, lambda output: output.loss)


def _picture(kind: str, more: dict[str, Any]) -> Training:
    batch = {'pixel_values': torch.randn(_BATCH, 3, 224, 224), 'labels': torch.randint(0, 2, (_BATCH,))}
    return Training(_made(kind, 'AutoModelForImageClassification', more), batch, lambda output: output.loss)
