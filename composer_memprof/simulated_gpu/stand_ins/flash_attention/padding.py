"""Sequences without their padding: which tokens are taken, and how they are put back.

As in ``bert_padding``, rows are gathered and scattered with an index for each element of a row, which is a view.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from composer_memprof.simulated_gpu.stand_ins.flash_attention import note_use


class _IndexFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, indices: Tensor) -> Tensor:  # type: ignore[override]
        note_use()
        ctx.save_for_backward(indices)
        ctx.rows = tensor.shape[0]
        flat = tensor.reshape(tensor.shape[0], -1)
        return flat.gather(0, _for_each_element(indices, flat)).reshape(-1, *tensor.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (indices,) = ctx.saved_tensors
        flat = gradient.reshape(gradient.shape[0], -1)
        into = torch.zeros(ctx.rows, flat.shape[1], dtype=flat.dtype, device=flat.device)
        into.scatter_(0, _for_each_element(indices, flat), flat)
        return into.reshape(ctx.rows, *gradient.shape[1:]), None


class _IndexPutFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:  # type: ignore[override]
        note_use()
        ctx.save_for_backward(indices)
        into = torch.zeros(first_axis_dim, *values.shape[1:], dtype=values.dtype, device=values.device)
        into[indices] = values
        return into

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (indices,) = ctx.saved_tensors
        return gradient[indices], None, None


class _IndexFirstAxisResidual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        note_use()
        ctx.save_for_backward(indices)
        return tensor[indices], tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, of_residual: Tensor) -> Any:  # type: ignore[override]
        (indices,) = ctx.saved_tensors
        places = indices.reshape(-1, *(1,) * (gradient.ndim - 1)).expand_as(gradient)
        return of_residual.scatter_add_(0, places, gradient), None


def _for_each_element(indices: Tensor, rows: Tensor) -> Tensor:
    return indices[:, None].expand(-1, rows.shape[1])


index_first_axis = _IndexFirstAxis.apply
index_put_first_axis = _IndexPutFirstAxis.apply
index_first_axis_residual = _IndexFirstAxisResidual.apply


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Optional[Tensor] = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens that count.

    Args:
        hidden_states: (batch, length, …).
        attention_mask: (batch, length), not zero where a token counts.
        unused_mask: the same, of tokens that are kept and not used.

    Returns:
        the tokens (tokens, …), their places (tokens,), the first token of each sequence (batch + 1), the longest length, and the
        lengths of what is used (batch,).
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    # A simulated GPU reads 0 of values that it does not follow, and then all tokens are kept
    longest = int(lengths.max().item()) or attention_mask.shape[1]
    first = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, first, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The tokens (tokens, …) at their places, as (batch, seqlen, …), with zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
