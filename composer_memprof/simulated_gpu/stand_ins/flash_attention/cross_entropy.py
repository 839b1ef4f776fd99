"""Cross entropy in one kernel: it keeps no probabilities, and backward may write over the logits."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, distributed

from composer_memprof.simulated_gpu.stand_ins.flash_attention import note_use
from composer_memprof.simulated_gpu.stand_ins.launching import launch

#: The kernels read labels of whole such bytes.
_ALIGNED = 16


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        precomputed_lse: Optional[Tensor],
        smoothing: float,
        logit_scale: float,
        lse_square_scale: float,
        ignore_index: int,
        inplace_backward: bool,
        process_group: Any,
    ) -> tuple[Tensor, Tensor]:
        note_use()
        if labels.dtype == torch.long and labels.data_ptr() % _ALIGNED:
            labels = torch.nn.functional.pad(labels, (0, 1))[..., :-1]
        if logits.stride(-1) != 1:
            logits = logits.contiguous()
        losses = _floats(logits)
        if precomputed_lse is not None and logit_scale == 1 and not smoothing:
            logsumexp = precomputed_lse.contiguous()
        else:
            logsumexp = _floats(logits)
        squares = _floats(logits)
        launch([logits, labels], [losses, logsumexp, squares])
        ranks = 1 if process_group is None else distributed.get_world_size(process_group)
        if ranks > 1:
            logsumexp, squares = _of_all_ranks(losses, logsumexp, process_group, ranks, lse_square_scale)
            for each in (squares, losses) if lse_square_scale else (losses,):
                each.masked_fill_(labels == ignore_index, 0.0)
        ctx.save_for_backward(logits, logsumexp, labels)
        ctx.mark_non_differentiable(squares)
        ctx.in_place = inplace_backward
        return losses, squares

    @staticmethod
    def backward(ctx: Any, of_losses: Tensor, of_squares: Tensor) -> Any:  # type: ignore[override]
        del of_squares  # has none
        logits, logsumexp, labels = ctx.saved_tensors
        gradient = logits if ctx.in_place else torch.empty_like(logits)
        launch([logits, of_losses, logsumexp, labels], [gradient])
        return (gradient, *(None,) * 8)


def _floats(logits: Tensor) -> Tensor:
    return torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)


def _of_all_ranks(
    losses: Tensor, logsumexp: Tensor, group: Any, ranks: int, lse_square_scale: float
) -> tuple[Tensor, Tensor]:
    """Of a vocabulary that the ranks share: the logsumexp and its squares; the losses are summed in place."""
    of_each = torch.empty(ranks, *logsumexp.shape, dtype=logsumexp.dtype, device=logsumexp.device)
    distributed.all_gather_into_tensor(of_each, logsumexp, group=group)
    summing: Any = distributed.all_reduce(losses, group=group, async_op=True)
    logsumexp = of_each.logsumexp(0)
    summing.wait()
    losses += logsumexp
    if not lse_square_scale:
        return logsumexp, torch.zeros_like(losses)
    squares = lse_square_scale * logsumexp.square()
    losses += squares
    return logsumexp, squares


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: Any = None,
) -> tuple[Tensor, Tensor]:
    """The loss of each row of logits (rows, classes), and the part of it that their scale has; both (rows,), float32.

    Args:
        labels: (rows,), the class of each row.
        inplace_backward: the logits become their own gradient.
        process_group: of ranks that have a part of the classes each.
    """
    return _CrossEntropy.apply(
        logits,
        labels,
        precomputed_lse,
        label_smoothing,
        logit_scale,
        lse_square_scale,
        ignore_index,
        inplace_backward,
        process_group,
    )


class CrossEntropyLoss(torch.nn.Module):
    """As :func:`cross_entropy_loss`, of all rows together (``reduction``): ``mean``, ``sum`` or ``none``."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = 'mean',
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ('mean', 'none', 'sum'):
            raise NotImplementedError(f"reduction must be 'mean', 'none' or 'sum', not {reduction!r}")
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.logit_scale = logit_scale
        self.lse_square_scale = lse_square_scale
        self.inplace_backward = inplace_backward
        self.process_group = process_group
        self.return_z_loss = return_z_loss

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Optional[Tensor] = None) -> Any:
        if not (input.is_cuda and target.is_cuda):
            raise AssertionError('flash-attn takes logits and labels on a GPU')
        loss, squares = cross_entropy_loss(
            input,
            target,
            precomputed_lse,
            self.label_smoothing,
            self.logit_scale,
            self.lse_square_scale,
            self.ignore_index,
            self.inplace_backward,
            self.process_group,
        )
        loss = self._reduced(loss, target)
        return (loss, self._reduced(squares, target)) if self.return_z_loss else loss

    def _reduced(self, loss: Tensor, target: Tensor) -> Tensor:
        if self.reduction == 'none':
            return loss
        return loss.sum() / (target != self.ignore_index).sum() if self.reduction == 'mean' else loss.sum()
