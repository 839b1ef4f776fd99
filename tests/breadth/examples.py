"""Small networks as in pytorch/examples, written anew: an image classifier, word models, generators, sequences."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.breadth.row import Row, Training


def rows() -> Iterator[Row]:
    source = 'after pytorch/examples, '
    yield Row('examples mnist', f'{source}mnist', '1,024 random pictures of 28 by 28', _mnist)
    yield Row(
        'examples word LSTM', f'{source}word_language_model', '64 sequences of 128 random words', lambda: _words('LSTM')
    )
    yield Row(
        'examples word GRU', f'{source}word_language_model', '64 sequences of 128 random words', lambda: _words('GRU')
    )
    yield Row(
        'examples word Transformer', f'{source}word_language_model', '32 sequences of 128 random words', _transformer
    )
    yield Row('examples vae', f'{source}vae', '8,192 random pictures of 28 by 28', _vae)
    yield Row('examples dcgan', f'{source}dcgan, its discriminator', '128 random pictures of 64 by 64', _discriminator)
    yield Row(
        'examples super resolution', f'{source}super_resolution', '16 random pictures of 128 by 128', _super_resolution
    )
    yield Row('examples siamese', f'{source}siamese_network', '256 pairs of random pictures of 28 by 28', _siamese)
    yield Row('examples time sequence', f'{source}time_sequence_prediction', '512 random series of 50 values', _series)
    yield Row('examples actor critic', f'{source}reinforcement_learning', '65,536 random states', _actor)


class _Net(nn.Module):
    """Calls a function with its parts."""

    def __init__(self, run: object, **parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.run = run

    def forward(self, **inputs: Tensor) -> object:
        return self.run(self.parts, **inputs)  # type: ignore[operator]


def _mnist() -> Training:
    layers = (nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(), nn.Linear(128, 10))
    labels = torch.randint(0, 10, (1024,))
    return Training(
        model,
        {'input': torch.randn(1024, 1, 28, 28)},
        lambda output: F.nll_loss(F.log_softmax(output, 1), labels),
        torch.optim.Adadelta,
    )


def _words(kind: str) -> Training:
    words, width = 8000, 512
    model = _Net(
        lambda parts, tokens: parts['head'](parts['rnn'](parts['embedding'](tokens))[0]),
        embedding=nn.Embedding(words, width),
        rnn=getattr(nn, kind)(width, width, 2, dropout=0.2),
        head=nn.Linear(width, words),
    )
    tokens = torch.randint(0, words, (128, 64))
    return Training(model, {'tokens': tokens}, lambda output: F.cross_entropy(output.flatten(0, 1), tokens.flatten()))


def _transformer() -> Training:
    words, width = 8000, 512
    model = _Net(
        lambda parts, tokens: parts['head'](parts['encoder'](parts['embedding'](tokens))),
        embedding=nn.Embedding(words, width),
        encoder=nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, 2048), 4, enable_nested_tensor=False),
        head=nn.Linear(width, words),
    )
    tokens = torch.randint(0, words, (128, 32))
    return Training(model, {'tokens': tokens}, lambda output: F.cross_entropy(output.flatten(0, 1), tokens.flatten()))


def _vae() -> Training:
    def run(parts: nn.ModuleDict, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(parts['first'](pictures))
        mean, logarithm = parts['mean'](hidden), parts['variance'](hidden)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * logarithm)
        return torch.sigmoid(parts['last'](F.relu(parts['second'](drawn)))), mean, logarithm

    pictures = torch.rand(8192, 784)
    parts = {'first': nn.Linear(784, 400), 'mean': nn.Linear(400, 20), 'variance': nn.Linear(400, 20)}
    model = _Net(run, **parts, second=nn.Linear(20, 400), last=nn.Linear(400, 784))

    def loss(output: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        made, mean, logarithm = output
        divergence = -0.5 * torch.sum(1 + logarithm - mean.pow(2) - logarithm.exp())
        return F.binary_cross_entropy(made, pictures, reduction='sum') + divergence

    return Training(model, {'pictures': pictures}, loss)


def _discriminator() -> Training:
    sizes, layers = (3, 64, 128, 256, 512), []
    for number, (before, after) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Conv2d(before, after, 4, 2, 1, bias=False))
        layers += [nn.BatchNorm2d(after)] if number else []
        layers.append(nn.LeakyReLU(0.2, inplace=True))
    model = nn.Sequential(*layers, nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Sigmoid())
    real = torch.ones(128)
    return Training(
        model, {'input': torch.randn(128, 3, 64, 64)}, lambda output: F.binary_cross_entropy(output.flatten(), real)
    )


def _super_resolution() -> Training:
    layers = (nn.Conv2d(1, 64, 5, 1, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 32, 3, 1, 1))
    model = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(32, 9, 3, 1, 1), nn.PixelShuffle(3))
    wanted = torch.randn(16, 1, 384, 384)
    return Training(model, {'input': torch.randn(16, 1, 128, 128)}, lambda output: F.mse_loss(output, wanted))


def _siamese() -> Training:
    from torchvision.models import resnet18

    def run(parts: nn.ModuleDict, first: Tensor, second: Tensor) -> Tensor:
        both = [parts['trunk'](each) for each in (first, second)]
        return torch.sigmoid(parts['head'](torch.cat(both, 1))).flatten()

    trunk = resnet18(weights=None)
    trunk.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    trunk.fc = nn.Identity()
    model = _Net(run, trunk=trunk, head=nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)))
    same = torch.ones(256)
    pictures = {'first': torch.randn(256, 1, 28, 28), 'second': torch.randn(256, 1, 28, 28)}
    return Training(model, pictures, lambda output: F.binary_cross_entropy(output, same), torch.optim.Adadelta)


def _series() -> Training:
    width = 512

    def run(parts: nn.ModuleDict, series: Tensor) -> Tensor:
        first = second = (series.new_zeros(512, width), series.new_zeros(512, width))
        values = []
        for value in series.split(1, dim=1):
            first = parts['first'](value, first)
            second = parts['second'](first[0], second)
            values.append(parts['last'](second[0]))
        return torch.cat(values, 1)

    model = _Net(run, first=nn.LSTMCell(1, width), second=nn.LSTMCell(width, width), last=nn.Linear(width, 1))
    series = torch.randn(512, 50)
    return Training(model, {'series': series}, lambda output: F.mse_loss(output, series))


def _actor() -> Training:
    def run(parts: nn.ModuleDict, states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.relu(parts['first'](states))
        return F.log_softmax(parts['action'](hidden), -1), parts['value'](hidden).flatten()

    model = _Net(run, first=nn.Linear(4, 1024), action=nn.Linear(1024, 2), value=nn.Linear(1024, 1))
    actions, rewards = torch.randint(0, 2, (65536,)), torch.randn(65536)

    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        chosen = output[0].gather(1, actions[:, None]).flatten()
        return -(chosen * (rewards - output[1].detach())).sum() + F.smooth_l1_loss(output[1], rewards)

    return Training(model, {'states': torch.randn(65536, 4)}, loss)
