"""Step times of single GPUs that others published, with the trainings and forward passes that they are of.

Sources:

* ``karpathy``: Andrej Karpathy, "Let's reproduce GPT-2 (124M)", 2024, section 2: one A100 SXM of 80 GB, 16 sequences of
  1,024 tokens, torch 2.3. His repository is karpathy/build-nanogpt.
* ``nanogpt-225``: karpathy/nanoGPT, pull request 225: 40 microbatches of 12 sequences, torch 2.0, compiled.
* ``transformers``: huggingface/transformers, docs/source/en/perf_train_gpu_one.mdx of 2022, torch 1.10.
* ``nvidia``: NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md, container 21.03.
* ``timm``: huggingface/pytorch-image-models, results/benchmark-{train,infer}-amp-*.csv, torch 1.12 and 2.4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from tests.benchmarks.simulation.single_gpu_models import Step, bert_large, convolutions, gpt2, vit


@dataclasses.dataclass(frozen=True)
class StepTime:
    """A step that somebody timed.

    Attributes:
        make: makes the model on the simulated GPU, and a function that is a step.
        seconds: of a step.
    """

    gpu: str
    source: str
    what: str
    make: Callable[[], Step]
    seconds: float


def _resnet(gpu: str, source: str, batch: int, precision: str, images: float, *, nhwc: bool, trains: bool) -> StepTime:
    """From images a second."""
    words = f'ResNet-50 {"training" if trains else "forward"}, {precision}, {batch} images'
    words += ', channels last' if nhwc else ''
    make = partial(convolutions, 'resnet50', batch, precision, channels_last=nhwc, trains=trains)
    return StepTime(gpu, source, words, make, batch / images)


def _vit(gpu: str, batch: int, images: float, *, width: int, layers: int, fused: bool, trains: bool) -> StepTime:
    """From images a second, in float16."""
    words = f'ViT, width {width}, {"training" if trains else "forward"}, fp16, {batch} images'
    make = partial(vit, batch, 'fp16', width=width, layers=layers, fused=fused, trains=trains)
    return StepTime(gpu, 'timm', words, make, batch / images)


def _gpt2(milliseconds: float, words: str, precision: str, **settings: object) -> StepTime:
    make = partial(gpt2, 16, precision, **settings)  # type: ignore[arg-type]
    return StepTime('a100-80gb', 'karpathy', f'GPT-2 {words}', make, milliseconds / 1000)


def _bert(samples: float, words: str, batch: int, precision: str, **settings: object) -> StepTime:
    """From samples a second of steps of four."""
    make = partial(bert_large, batch, precision, **settings)  # type: ignore[arg-type]
    return StepTime('v100-16gb', 'transformers', f'BERT-large {words}', make, 4 / samples)


def step_times() -> list[StepTime]:
    """All of them."""
    return [
        _gpt2(1000, 'fp32', 'fp32', fused=False),
        _gpt2(333, 'tf32', 'tf32', fused=False),
        _gpt2(300, 'bf16', 'bf16', fused=False),
        _gpt2(130, 'bf16, compiled', 'bf16', fused=False, compiled=True),
        _gpt2(96, 'bf16, compiled, flash attention', 'bf16', compiled=True),
        _gpt2(93, 'the same, a vocabulary of 50,304', 'bf16', compiled=True, vocabulary=50304),
        StepTime(
            'rtx-4090',
            'nanogpt-225',
            'GPT-2 bf16, compiled, flash attention, 40 microbatches of 12',
            partial(gpt2, 12, 'bf16', compiled=True, vocabulary=50304, microbatches=40, fused_optimizer=True),
            4.622,
        ),
        _bert(8.86, 'fp32', 4, 'fp32'),
        _bert(7.75, 'fp32, 4 microbatches of 1', 1, 'fp32', microbatches=4),
        _bert(5.99, 'the same, checkpointed', 1, 'fp32', microbatches=4, checkpointed=True),
        _bert(18.64, 'fp16', 4, 'fp16'),
        _bert(10.09, 'fp16, 4 microbatches of 1, checkpointed', 1, 'fp16', microbatches=4, checkpointed=True),
        _resnet('v100-16gb', 'nvidia', 128, 'fp32', 367, nhwc=False, trains=True),
        _resnet('v100-16gb', 'nvidia', 256, 'fp16', 1200, nhwc=True, trains=True),
        _resnet('v100-16gb', 'nvidia', 128, 'fp32', 1229, nhwc=False, trains=False),
        _resnet('v100-16gb', 'nvidia', 128, 'fp16', 3249, nhwc=True, trains=False),
        _resnet('a100-80gb', 'nvidia', 256, 'tf32', 938, nhwc=False, trains=True),
        _resnet('a100-80gb', 'nvidia', 256, 'fp16', 2470, nhwc=True, trains=True),
        _resnet('t4', 'nvidia', 128, 'fp32', 426, nhwc=False, trains=False),
        _resnet('t4', 'nvidia', 128, 'fp16', 1190, nhwc=True, trains=False),
        _resnet('t4', 'nvidia', 1, 'fp32', 98, nhwc=False, trains=False),
        _resnet('rtx-3090', 'timm', 512, 'fp16', 826.06, nhwc=False, trains=True),
        _resnet('rtx-3090', 'timm', 512, 'fp16', 1218.01, nhwc=True, trains=True),
        _vit('rtx-3090', 384, 1052.92, width=384, layers=12, fused=False, trains=True),
        _vit('rtx-3090', 192, 390.86, width=768, layers=12, fused=False, trains=True),
        _vit('rtx-3090', 64, 117.08, width=1024, layers=24, fused=False, trains=True),
        _vit('rtx-3090', 1024, 1570.66, width=768, layers=12, fused=True, trains=False),
        _resnet('rtx-4090', 'timm', 512, 'fp16', 5088.39, nhwc=True, trains=False),
        _vit('rtx-4090', 1024, 2787.15, width=768, layers=12, fused=True, trains=False),
        _vit('rtx-4090', 1024, 912.70, width=1024, layers=24, fused=True, trains=False),
    ]
