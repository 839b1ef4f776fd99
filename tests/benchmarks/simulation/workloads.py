"""Trainings whose memory is predicted and measured: ``python -m tests.benchmarks.simulation.workloads NAME`` runs one on cuda:0.

Prints a JSON line with the peaks of torch's allocator, in bytes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

from composer_memprof.examples.byte_gpt import Block, ByteGPT

STEPS = 3
Step = Callable[[], Tensor]


def gpt(checkpointed: bool = False, compiled: bool = False) -> tuple[nn.Module, Step]:
    model = ByteGPT(d_model=1024, n_heads=16, n_layers=24, max_seq_len=512).cuda()
    if checkpointed:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    called = torch.compile(model) if compiled else model
    ids = torch.zeros(8, 512, dtype=torch.long, device='cuda')

    def step() -> Tensor:
        batch = {'input_ids': ids, 'labels': ids}
        with torch.autocast('cuda', dtype=torch.bfloat16):
            return model.loss(called(batch), batch)

    return model, step


def resnet(channels_last: bool = False) -> tuple[nn.Module, Step]:
    model = torchvision.models.resnet50().cuda()
    images = torch.zeros(64, 3, 224, 224, device='cuda')
    if channels_last:
        model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    labels = torch.zeros(64, dtype=torch.long, device='cuda')
    return model, lambda: nn.functional.cross_entropy(model(images), labels)


def bert(checkpointed: bool = False, compiled: bool = False) -> tuple[nn.Module, Step]:
    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation='gelu', batch_first=True)
    encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(30522, 768), encoder, nn.Linear(768, 30522)).cuda()
    if checkpointed:
        apply_activation_checkpointing(model, check_fn=lambda part: isinstance(part, nn.TransformerEncoderLayer))
    called = torch.compile(model) if compiled else model
    ids = torch.zeros(16, 256, dtype=torch.long, device='cuda')
    return model, lambda: nn.functional.cross_entropy(called(ids).flatten(0, 1), ids.flatten())


#: Each with the setting of torch's allocator.
WORKLOADS: dict[str, tuple[Callable[[], tuple[nn.Module, Step]], str]] = {
    'GPT, 0.3 B, bf16': (gpt, ''),
    'GPT, checkpointed': (lambda: gpt(checkpointed=True), ''),
    'GPT, compiled': (lambda: gpt(compiled=True), ''),
    'GPT, expandable segments': (gpt, 'expandable_segments:True'),
    'ResNet-50': (resnet, ''),
    'ResNet-50, channels last': (lambda: resnet(channels_last=True), ''),
    'ResNet-50, expandable segments': (resnet, 'expandable_segments:True'),
    'BERT base': (bert, ''),
    'BERT base, checkpointed': (lambda: bert(checkpointed=True), ''),
    'BERT base, compiled': (lambda: bert(compiled=True), ''),
}


def main(name: str) -> None:
    make, setting = WORKLOADS[name]
    if setting:
        os.environ['PYTORCH_CUDA_ALLOC_CONF'] = setting
    torch.manual_seed(0)
    model, step = make()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(STEPS):
        step().backward()
        optimizer.step()
        optimizer.zero_grad()
    peaks = {'allocated': torch.cuda.max_memory_allocated(), 'reserved': torch.cuda.max_memory_reserved()}
    print(json.dumps({**peaks, 'device': torch.cuda.get_device_name()}))


if __name__ == '__main__':
    main(sys.argv[1])
