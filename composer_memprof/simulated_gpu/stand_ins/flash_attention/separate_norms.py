"""RMS norm of ``dropout_layer_norm``, an extension that flash-attn's users build separately.

How many sums of the weight's gradient there are depends on its kernels; one for each multiprocessor is assumed, which is at
least a half of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from composer_memprof.simulated_gpu.stand_ins.flash_attention import note_use
from composer_memprof.simulated_gpu.stand_ins.launching import launch


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:  # type: ignore[override]
        note_use()
        x, weight = x.contiguous(), weight.contiguous()
        rows = x.view(-1, weight.numel())
        y = torch.empty_like(rows)
        mean, deviation = (torch.empty(len(rows), dtype=torch.float32, device=x.device) for _ in range(2))
        launch([rows, weight], [y, mean, deviation])
        ctx.save_for_backward(rows, weight, mean, deviation)
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        x, weight, mean, deviation = ctx.saved_tensors
        of_y = gradient.contiguous().view(x.shape)
        of_x, of_weight, of_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        parts = torch.cuda.get_device_properties(x.device).multi_processor_count
        sums = [torch.empty(parts, x.shape[1], dtype=torch.float32, device=x.device) for _ in range(2)]
        launch([x, weight, of_y, mean, deviation], [of_x, *sums])
        launch(sums, [of_weight, of_bias])
        return of_x.view(gradient.shape), of_weight, None


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The norm of each row of ``x`` (…, width)."""
    return _RMSNorm.apply(x, weight, epsilon)


class RMSNorm(torch.nn.Module):
    """As :func:`rms_norm`, with its own weight."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter('bias', None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
