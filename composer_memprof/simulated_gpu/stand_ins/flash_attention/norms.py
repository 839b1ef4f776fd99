"""Layer norm and RMS norm in one kernel, with what is added before: a residual, a second input, dropout."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from composer_memprof.simulated_gpu.stand_ins.flash_attention import note_use
from composer_memprof.simulated_gpu.stand_ins.launching import launch

#: Bytes of a row that the kernels hold at once.
_LONGEST_ROW = 65536


class _Norm(torch.autograd.Function):
    """Tensors are (…, width). With ``prenorm`` it returns what it normalizes, too."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        residual: Optional[Tensor],
        x1: Optional[Tensor],
        weight1: Optional[Tensor],
        bias1: Optional[Tensor],
        eps: float,
        dropout_p: float,
        rowscale: Optional[Tensor],
        prenorm: bool,
        residual_in_fp32: bool,
        is_rms_norm: bool,
        return_dropout_mask: bool,
        out: Optional[Tensor],
        residual_out: Optional[Tensor],
    ) -> Any:
        note_use()
        shape = x.shape
        x, residual, x1 = _rows(x), _rows(residual), _rows(x1)
        weight, bias, weight1, bias1 = map(_contiguous, (weight, bias, weight1, bias1))
        rowscale = None if rowscale is None else rowscale.reshape(-1).contiguous()
        count, width = x.shape
        if width * x.element_size() > _LONGEST_ROW:
            raise RuntimeError(f'flash-attn normalizes rows of at most 64 KiB, not {width * x.element_size()} B')
        y = torch.empty_like(x) if out is None else out.reshape(-1, width)
        y1 = None if weight1 is None else torch.empty_like(y)
        added = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x.dtype
        summed: Optional[Tensor] = x
        if residual is not None or x1 is not None or rowscale is not None or dropout_p or added != x.dtype:
            if residual_out is None:
                summed = torch.empty(count, width, dtype=added, device=x.device)
            else:
                summed = residual_out.reshape(-1, width)
        mean = None if is_rms_norm else _floats(x, count)
        deviation = _floats(x, count)
        kept = count if x1 is None else 2 * count
        seeds = torch.randint(2**32, (kept,), device=x.device, dtype=torch.int64) if dropout_p else None
        mask = None
        if return_dropout_mask and dropout_p:
            mask = torch.empty(kept, width, dtype=torch.bool, device=x.device)
        read = _there(x, residual, x1, weight, bias, weight1, bias1, rowscale, seeds)
        launch(read, _there(y, y1, None if summed is x else summed, mean, deviation, mask))
        ctx.save_for_backward(summed, weight, bias, weight1, bias1, rowscale, seeds, mean, deviation)
        ctx.about = (shape, x.dtype, dropout_p, prenorm)
        ctx.has_residual, ctx.has_x1 = residual is not None, x1 is not None
        masks: tuple[Optional[Tensor], ...] = ()
        if return_dropout_mask:
            masks = (mask, None) if mask is None or x1 is None else mask.tensor_split(2)
        found = [y, *([y1] if y1 is not None else []), *([summed] if prenorm else []), *masks]
        shaped = [each if each is None else each.reshape(shape) for each in found]
        return shaped[0] if len(shaped) == 1 else tuple(shaped)

    @staticmethod
    def backward(ctx: Any, of_y: Tensor, *others: Any) -> Any:  # type: ignore[override]
        x, weight, bias, weight1, bias1, rowscale, seeds, mean, deviation = ctx.saved_tensors
        shape, dtype, dropout_p, prenorm = ctx.about
        of_y = _rows(of_y)
        of_y1 = _rows(others[0]) if weight1 is not None else None
        of_residual_out = _rows(others[weight1 is not None]) if prenorm else None
        of_x = torch.empty(*x.shape, dtype=dtype, device=x.device)
        has_own = ctx.has_residual and (dtype != x.dtype or dropout_p > 0 or rowscale is not None or ctx.has_x1)
        of_residual = torch.empty_like(x) if has_own else None
        of_x1 = torch.empty_like(of_x) if ctx.has_x1 and dropout_p > 0 else None
        sums = [_sums(x) if each is not None else None for each in (weight, bias, weight1, bias1)]
        read = _there(x, weight, bias, weight1, of_y, of_y1, of_residual_out, rowscale, seeds, mean, deviation)
        launch(read, _there(of_x, of_residual, of_x1, *sums))
        of_weights = [
            None if total is None else total.sum(0).to(each.dtype)
            for total, each in zip(sums, (weight, bias, weight1, bias1), strict=True)
        ]
        if ctx.has_residual and of_residual is None:
            of_residual = of_x
        if ctx.has_x1 and of_x1 is None:
            of_x1 = of_x
        first = of_x.reshape(shape), *of_weights[:2]
        second = (_shaped(of_residual, shape), _shaped(of_x1, shape), *of_weights[2:])
        return (*first, *second, *(None,) * 9)


def _rows(tensor: Any) -> Any:
    if tensor is None:
        return None
    rows = tensor.reshape(-1, tensor.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _contiguous(tensor: Optional[Tensor]) -> Any:
    return None if tensor is None else tensor.contiguous()


def _shaped(tensor: Optional[Tensor], shape: torch.Size) -> Optional[Tensor]:
    return None if tensor is None else tensor.reshape(shape)


def _there(*tensors: Optional[Tensor]) -> list[Tensor]:
    return [each for each in tensors if each is not None]


def _floats(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def _sums(x: Tensor) -> Tensor:
    """Of a weight's gradient, those of each multiprocessor."""
    return _floats(x, torch.cuda.get_device_properties(x.device).multi_processor_count, x.shape[-1])


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    residual: Optional[Tensor] = None,
    x1: Optional[Tensor] = None,
    weight1: Optional[Tensor] = None,
    bias1: Optional[Tensor] = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Optional[Tensor] = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out: Optional[Tensor] = None,
    residual_out: Optional[Tensor] = None,
) -> Any:
    """The norm of ``x`` plus what is added to it, of each row (…, width).

    Returns:
        the norm; with ``weight1`` a second one; with ``prenorm`` the sum; with ``return_dropout_mask`` two masks.
    """
    of_inputs = (x, weight, bias, residual, x1, weight1, bias1)
    about = (eps, dropout_p, rowscale, prenorm, residual_in_fp32, is_rms_norm, return_dropout_mask)
    return _Norm.apply(*of_inputs, *about, out, residual_out)


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    residual: Optional[Tensor] = None,
    x1: Optional[Tensor] = None,
    weight1: Optional[Tensor] = None,
    bias1: Optional[Tensor] = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Optional[Tensor] = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
    out: Optional[Tensor] = None,
    residual_out: Optional[Tensor] = None,
) -> Any:
    """As :func:`layer_norm_fn`, without the mean."""
    of_inputs = (x, weight, bias, residual, x1, weight1, bias1)
    about = (eps, dropout_p, rowscale, prenorm, residual_in_fp32, True, return_dropout_mask)
    return layer_norm_fn(*of_inputs, *about, out, residual_out)


class RMSNorm(torch.nn.Module):
    """As :func:`rms_norm_fn`, with its own weight."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, dropout_p: float = 0.0, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.eps = eps
        self.drop = torch.nn.Dropout(dropout_p) if dropout_p > 0 else None
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter('bias', None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)

    def forward(
        self, x: Tensor, residual: Optional[Tensor] = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        dropout = self.drop.p if self.drop is not None and self.training else 0.0
        return rms_norm_fn(
            x,
            self.weight,
            None,
            residual,
            eps=self.eps,
            dropout_p=dropout,
            prenorm=prenorm,
            residual_in_fp32=residual_in_fp32,
        )
