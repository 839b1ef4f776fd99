"""Ways to train: Composer's algorithms, as functions of a model or a batch, and adapters of peft."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.breadth.row import Row, Training, fused_adamw

_PICTURES, _CLASSES = 16, 100
_DATA = f'{_PICTURES} random pictures of 96 by 96, random classes'
_TOKENS = '8 sequences of 256 random tokens, their own labels'
#: By name what becomes of a network, with its settings.
_SURGERY: dict[str, dict[str, Any]] = {
    'blurpool': {'replace_convs': True},
    'channels_last': {},
    'factorization': {'factorize_convs': True, 'latent_channels': 32, 'min_channels': 64},
    'ghost_batchnorm': {'ghost_batch_size': 8},
    'squeeze_excite': {'min_channels': 64},
    'weight_standardization': {},
}


def rows() -> Iterator[Row]:
    for name, settings in _SURGERY.items():
        yield Row(
            f'composer {name}',
            f'Composer, apply_{name}, on ResNet-50',
            _DATA,
            lambda n=name, s=settings: _changed_network(n, s),
        )
    for name, loss in _LOSSES.items():
        yield Row(f'composer {name}', f'Composer, {name}, on ResNet-18', _DATA, lambda f=loss: _on_batch(f))
    for name in ('ema', 'swa', 'gradient_clipping'):
        yield Row(f'composer {name}', f'Composer, {name}, on ResNet-18', _DATA, lambda n=name: _around_steps(n))
    yield Row('composer sam', 'Composer, SAMOptimizer, on ResNet-18', _DATA, _sharpness)
    for name in ('gpt2', 'bert'):
        yield Row(f'composer alibi {name}', f'Composer, apply_alibi, on {name}', _TOKENS, lambda n=name: _alibi(n))
    yield Row('composer low_precision_layernorm', 'Composer, on a Transformer', _TOKENS, _low_precision)
    yield Row('composer seq_length_warmup', 'Composer, set_batch_sequence_length, on GPT-2', _TOKENS, _shorter)
    yield Row('peft lora', 'peft, LoraConfig, on Llama', _TOKENS, lambda: _adapted('LoraConfig', r=8))
    yield Row(
        'peft dora', 'peft, LoraConfig(use_dora), on Llama', _TOKENS, lambda: _adapted('LoraConfig', use_dora=True)
    )
    yield Row('peft ia3', 'peft, IA3Config, on Llama', _TOKENS, lambda: _adapted('IA3Config', feedforward_modules=[]))


class _WithLoss(nn.Module):
    """A network and what is done with its batch, which returns the loss."""

    def __init__(self, network: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network = network
        self.loss = loss

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        return self.loss(self.network, pictures, classes)


def _plainly(network: nn.Module, pictures: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(network(pictures), classes)


def _mixup(network: nn.Module, pictures: Tensor, classes: Tensor) -> Tensor:
    from composer.functional import mixup_batch

    mixed, others, share = mixup_batch(pictures, classes, alpha=0.2)
    found = network(mixed)
    return (1 - share) * F.cross_entropy(found, classes) + share * F.cross_entropy(found, others)


def _cutmix(network: nn.Module, pictures: Tensor, classes: Tensor) -> Tensor:
    from composer.functional import cutmix_batch

    mixed, others, share, _ = cutmix_batch(pictures, classes, alpha=1.0)
    found = network(mixed)
    return share * F.cross_entropy(found, classes) + (1 - share) * F.cross_entropy(found, others)


def _cutout(network: nn.Module, pictures: Tensor, classes: Tensor) -> Tensor:
    from composer.functional import cutout_batch

    return _plainly(network, cutout_batch(pictures, num_holes=1, length=0.5), classes)


def _colout(network: nn.Module, pictures: Tensor, classes: Tensor) -> Tensor:
    from composer.functional import colout_batch

    left: Any = colout_batch(pictures, p_row=0.15, p_col=0.15)
    return _plainly(network, left, classes)


def _smoothed(network: nn.Module, pictures: Tensor, classes: Tensor) -> Tensor:
    from composer.functional import smooth_labels

    found = network(pictures)
    return F.cross_entropy(found, smooth_labels(found, classes, smoothing=0.1))


def _resized(network: nn.Module, pictures: Tensor, classes: Tensor) -> Tensor:
    from composer.functional import resize_batch

    return _plainly(network, resize_batch(pictures, classes, scale_factor=0.5, mode='resize')[0], classes)


_LOSSES = {
    'mixup': _mixup,
    'cutmix': _cutmix,
    'cutout': _cutout,
    'colout': _colout,
    'label_smoothing': _smoothed,
    'progressive_resizing': _resized,
}


def _network(name: str) -> nn.Module:
    from torchvision import models

    made: nn.Module = getattr(models, name)(num_classes=_CLASSES)
    return made.train()


def _batch() -> dict[str, Tensor]:
    return {'pictures': torch.randn(_PICTURES, 3, 96, 96), 'classes': torch.randint(0, _CLASSES, (_PICTURES,))}


def _changed_network(name: str, settings: dict[str, Any]) -> Training:
    from composer import functional

    network = _network('resnet50')
    changed: Any = getattr(functional, f'apply_{name}')(network, **settings)
    changed = changed if isinstance(changed, nn.Module) else network  # some return how much they changed
    return Training(_WithLoss(changed, _plainly), _batch(), lambda loss: loss)


def _on_batch(loss: Callable[..., Tensor]) -> Training:
    return Training(_WithLoss(_network('resnet18'), loss), _batch(), lambda loss: loss)


def _around_steps(name: str) -> Training:
    """With something before or after each step of the optimizer."""
    from composer.functional import apply_gradient_clipping, compute_ema
    from torch.optim.swa_utils import AveragedModel

    model = _WithLoss(_network('resnet18'), _plainly)
    average: Any = AveragedModel(model) if name == 'swa' else copy.deepcopy(model) if name == 'ema' else None

    def before() -> None:
        if name == 'gradient_clipping':
            apply_gradient_clipping(model, 'norm', 1.0, fsdp_enabled=False)

    def after() -> None:
        if name == 'ema':
            compute_ema(model, average, smoothing=0.99)
        elif name == 'swa':
            average.update_parameters(model)

    def optimizer(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        made = fused_adamw(parameters, lr)
        made.register_step_pre_hook(lambda *_: before())
        made.register_step_post_hook(lambda *_: after())
        return made

    return Training(model, _batch(), lambda loss: loss, optimizer)


def _causal(kind: str) -> nn.Module:
    from tests.breadth.language import causal

    return causal(kind)


def _tokens() -> dict[str, Tensor]:
    tokens = torch.randint(3, 8000, (8, 256))
    return {'input_ids': tokens, 'labels': tokens}


def _sharpness() -> Training:
    from composer.algorithms.sam.sam import SAMOptimizer

    model = _WithLoss(_network('resnet18'), _plainly)

    def optimizer(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return SAMOptimizer(fused_adamw(parameters, lr))

    return Training(model, _batch(), lambda loss: loss, optimizer, is_trained_by_optimizer=True)


def _alibi(name: str) -> Training:
    from composer.functional import apply_alibi

    from tests.breadth.language import causal, masked

    model = causal(name) if name == 'gpt2' else masked(name)
    device = next(model.parameters()).device
    with torch.device('cpu'):  # its slopes are made on the host, as users do before they move a model
        apply_alibi(model.to('cpu'), max_sequence_length=256)
    model.to(device)
    return Training(model, _tokens(), lambda output: output.loss)


class _Shortened(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Tensor) -> Any:
        from composer.functional import set_batch_sequence_length

        return self.model(**set_batch_sequence_length(dict(batch), 128))


def _shorter() -> Training:
    return Training(_Shortened(_causal('gpt2')), _tokens(), lambda output: output.loss)


def _low_precision() -> Training:
    from composer.functional import apply_low_precision_layernorm

    model = _causal('gpt2')
    apply_low_precision_layernorm(model, None, torch.bfloat16)
    return Training(model, _tokens(), lambda output: output.loss)


def _adapted(config: str, **settings: Any) -> Training:
    import peft

    asked = getattr(peft, config)(target_modules=['q_proj', 'v_proj'], task_type='CAUSAL_LM', **settings)
    return Training(peft.get_peft_model(_causal('llama'), asked), _tokens(), lambda output: output.loss)
