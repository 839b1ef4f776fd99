"""Models of torchvision and timm, without weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.breadth.row import Row, Training

_BATCH, _CLASSES = 8, 1000
_DATA = f'{_BATCH} random pictures of 224 by 224, random classes'
_TORCHVISION = (
    *(
        'resnet18',
        'resnet50',
        'wide_resnet50_2',
        'resnext50_32x4d',
        'mobilenet_v2',
        'mobilenet_v3_large',
        'efficientnet_b0',
    ),
    *('densenet121', 'vgg11_bn', 'alexnet', 'squeezenet1_1', 'shufflenet_v2_x1_0', 'mnasnet1_0', 'regnet_y_400mf'),
    *('convnext_tiny', 'swin_t', 'swin_v2_t', 'vit_b_16', 'maxvit_t'),
)
_TIMM = (
    *('resnet26d', 'seresnet50', 'efficientnet_b1', 'mixer_s16_224', 'convnextv2_nano', 'vit_small_patch16_224'),
    *('deit_tiny_patch16_224', 'cait_xxs24_224', 'coat_lite_tiny', 'nfnet_l0', 'regnetx_004', 'mobilenetv4_conv_small'),
    *('levit_128', 'poolformer_s12', 'ghostnet_100', 'hrnet_w18_small', 'visformer_tiny', 'edgenext_small'),
)


def rows() -> Iterator[Row]:
    for name in _TORCHVISION:
        yield Row(
            f'torchvision {name}', f'torchvision.models.{name}', _DATA, lambda n=name: _classifier('torchvision', n)
        )
    for name in _TIMM:
        yield Row(f'timm {name}', f'timm.create_model({name!r})', _DATA, lambda n=name: _classifier('timm', n))
    segmented = '4 random pictures of 256 by 256, random classes of each pixel'
    for name in ('fcn_resnet50', 'deeplabv3_resnet50', 'lraspp_mobilenet_v3_large'):
        yield Row(
            f'torchvision {name}', f'torchvision.models.segmentation.{name}', segmented, lambda n=name: _segmenter(n)
        )
    yield Row(
        'torchvision r3d_18', 'torchvision.models.video.r3d_18', '2 random films of 8 pictures of 112 by 112', _video
    )


def _classifier(package: str, name: str) -> Training:
    model: Any
    if package == 'timm':
        import timm

        model = timm.create_model(name, num_classes=_CLASSES)
    else:
        from torchvision import models

        model = models.get_model(name, weights=None)
    inputs, labels = torch.randn(_BATCH, 3, 224, 224), torch.randint(0, _CLASSES, (_BATCH,))
    return Training(model.train(), {_first_of(model): inputs}, lambda output: F.cross_entropy(_logits(output), labels))


def _segmenter(name: str) -> Training:
    from torchvision.models import segmentation

    model = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=21)
    labels = torch.randint(0, 21, (4, 256, 256))
    return Training(
        model.train(),
        {_first_of(model): torch.randn(4, 3, 256, 256)},
        lambda output: F.cross_entropy(output['out'], labels),
    )


def _video() -> Training:
    from torchvision.models.video import r3d_18

    labels = torch.randint(0, 400, (2,))
    return Training(
        r3d_18(weights=None), {'x': torch.randn(2, 3, 8, 112, 112)}, lambda output: F.cross_entropy(output, labels)
    )


def _first_of(model: torch.nn.Module) -> str:
    return next(name for name in model.forward.__code__.co_varnames if name != 'self')


def _logits(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
