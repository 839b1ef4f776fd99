"""Models whose sizes follow from values: graphs of several sizes, objects in pictures, speech, experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.breadth.row import Row, Training


def rows() -> Iterator[Row]:
    graphs = '64 random graphs of 20 to 83 nodes, with four random edges a node'
    for name in ('GCNConv', 'SAGEConv', 'GATConv', 'GraphConv'):
        yield Row(
            f'graphs {name}', f'PyG, torch_geometric.nn.{name}, global_mean_pool', graphs, lambda n=name: _graphs(n)
        )
    objects = '2 random pictures of 320 by 320, with three random boxes each'
    for name in ('fasterrcnn_resnet50_fpn', 'retinanet_resnet50_fpn', 'ssdlite320_mobilenet_v3_large'):
        yield Row(f'torchvision {name}', f'torchvision.models.detection.{name}', objects, lambda n=name: _objects(n))
    yield Row('transformers wav2vec2', 'Transformers, Wav2Vec2ForCTC', '4 random sounds of a second or less', _speech)
    for name in ('mixtral', 'qwen2_moe', 'olmoe'):
        yield Row(
            f'transformers {name}',
            f'Transformers, AutoModelForCausalLM, {name}',
            '8 sequences of 256 random tokens',
            lambda n=name: _experts(n),
        )


class _Graphs(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        import torch_geometric.nn as layers

        made = getattr(layers, kind)
        self.layers = nn.ModuleList([made(64, 256), made(256, 256), made(256, 256)])
        self.pool = layers.global_mean_pool
        self.head = nn.Linear(256, 10)

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        for layer in self.layers:
            nodes = layer(nodes, edges).relu()
        return self.head(self.pool(nodes, graph))  # type: ignore[no-any-return]


def _graphs(kind: str) -> Training:
    sizes = torch.arange(20, 84)
    graph = torch.arange(64).repeat_interleave(sizes, output_size=int(sum(range(20, 84))))
    nodes = len(graph)
    labels = torch.randint(0, 10, (64,))
    batch = {'nodes': torch.randn(nodes, 64), 'edges': torch.randint(0, nodes, (2, 4 * nodes)), 'graph': graph}
    return Training(_Graphs(kind), batch, lambda output: F.cross_entropy(output, labels))


def _objects(name: str) -> Training:
    from torchvision.models import detection

    model: Any = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=10)
    boxes = torch.tensor([[10.0, 10.0, 100.0, 120.0], [50.0, 60.0, 200.0, 300.0], [5.0, 100.0, 60.0, 160.0]])
    batch = {
        'images': [torch.rand(3, 320, 320) for _ in range(2)],
        'targets': [{'boxes': boxes.clone(), 'labels': torch.tensor([1, 4, 9])} for _ in range(2)],
    }
    return Training(model.train(), batch, lambda losses: sum(losses.values()))


def _speech() -> Training:
    import transformers

    config = transformers.Wav2Vec2Config(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        mask_time_prob=0.0,
        layerdrop=0.0,
    )
    labels = torch.randint(1, 32, (4, 20))
    labels[1:, 12:] = -100
    heard = torch.ones(4, 16000, dtype=torch.long)
    heard[2:, 9000:] = 0
    batch = {'input_values': torch.randn(4, 16000), 'attention_mask': heard, 'labels': labels}
    return Training(transformers.Wav2Vec2ForCTC(config).train(), batch, lambda output: output.loss)


def _experts(kind: str) -> Training:
    from tests.breadth.language import causal

    sizes = {'num_local_experts': 8, 'num_experts': 8, 'num_experts_per_tok': 2, 'moe_intermediate_size': 1024}
    tokens = torch.randint(3, 8000, (8, 256))
    model = causal(kind, num_key_value_heads=4, shared_expert_intermediate_size=1024, **sizes)
    return Training(model, {'input_ids': tokens, 'labels': tokens}, lambda output: output.loss)
