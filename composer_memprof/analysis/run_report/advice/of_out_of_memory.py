"""What ends each reason for which the memory of a device ran out."""

from __future__ import annotations

from collections.abc import Sequence

from composer_memprof.analysis.run_report.advice import code
from composer_memprof.analysis.run_report.advice.kinds import Advice
from composer_memprof.analysis.run_report.causes.ran_out_kinds import (
    NOT_FOUND,
    Activations,
    BesideModel,
    EvaluationGraph,
    Fragmented,
    FullPrecision,
    GatheredWhole,
    KeptFromBefore,
    KeptInEvaluation,
    LargeBatch,
    LargeCheckpoint,
    LargeEvaluation,
    LargeRequest,
    LargeTensors,
    Layers,
    ModelState,
    OutsideUse,
    RanOut,
)
from composer_memprof.analysis.run_report.causes.ran_out_parts import KeptInCopy, UnusedGradients, UselessGraph
from composer_memprof.messages import count_of, human_bytes
from composer_memprof.vocabulary import CHECKPOINT_BLOCKS, SHARD

_EXPANDABLE = 'expandable_segments:True'
_OF_TENSORS = {
    'logits': 'Use a smaller device_train_microbatch_size, or compute the loss in chunks of the sequence.',
    'attention': 'Use torch.nn.functional.scaled_dot_product_attention in half precision and without a mask of its own, so that '
    'flash attention runs: it keeps no scores.',
    '': 'Use a smaller device_train_microbatch_size.',
}


def against_running_out(cause: RanOut, found: Sequence[Advice]) -> Advice:
    """What ends a reason; of the advice that was found anyway, if it is there.

    Args:
        cause (RanOut): the reason.
        found (Sequence[Advice]): from the figures alone.
    """
    if isinstance(cause, OutsideUse):
        return Advice(
            'Look for other processes on the GPU (nvidia-smi), and end them.',
            f'{human_bytes(cause.bytes)} of {human_bytes(cause.total)} are used outside of torch.',
            frees=cause.bytes,
        )
    if isinstance(cause, Fragmented):
        return _found(found, setting=True) or Advice(
            f'Set PYTORCH_CUDA_ALLOC_CONF={_EXPANDABLE} before the training starts.',
            f'{human_bytes(cause.idle)} lay idle in torch, the largest piece {human_bytes(cause.hole)}.',
            frees=cause.idle,
            reserved=True,
            setting=_EXPANDABLE,
            code=code.EXPANDABLE,
        )
    if isinstance(cause, ModelState):
        if cause.steps:
            return _one_optimizer(cause)
        return _found(found, change=SHARD) or _less_state(cause)
    if isinstance(cause, BesideModel):
        first = next(iter(cause.kept))
        if first == NOT_FOUND:
            return Advice(
                "Free what was put on the device before the training: load checkpoints with map_location='cpu', and del them.",
                f'{human_bytes(cause.bytes)} of the device are no part of the model and lay there from the start.',
                frees=cause.bytes,
                code=code.LOADED_ON_HOST,
            )
        return Advice(
            f'Keep {first.partition(", ")[0]} on the host, in half precision, or sharded over the ranks.',
            f'It takes {human_bytes(cause.kept[first])} of the device, however small the batch is.',
            frees=cause.kept[first] // 2,
            code=code.HALVED,
        )
    if isinstance(cause, UselessGraph):
        return Advice(
            f'Run {cause.module} under torch.no_grad(), with {cause.module}.eval() and .requires_grad_(False).',
            'No gradient of it is used, so what is kept for its backward pass is of no use.',
            frees=cause.bytes,
            code=code.NO_GRAD_PART.format(cause.module.rpartition('.')[2]),
        )
    if isinstance(cause, UnusedGradients):
        first = next(iter(cause.modules)).partition('.*')[0]
        return Advice(
            f'Freeze {" and ".join(list(cause.modules)[:3])}, before training: no optimizer has their parameters.',
            'Without requires_grad they get no gradients, and what comes before the first trained layer keeps no activations.',
            frees=cause.bytes,
            code=code.FROZEN.format(first or 'backbone'),
        )
    if isinstance(cause, KeptInCopy):
        names = ' and '.join(cause.copies)
        return Advice(
            f'Keep the copy {names} on the host, or in half precision; or average weights less often, from a checkpoint.',
            f'It takes {human_bytes(cause.bytes)} of the device, however small the batch is.',
            frees=cause.bytes,
            code=code.COPY_ON_HOST.format(next(iter(cause.copies))),
        )
    if isinstance(cause, Activations):
        return Advice(
            'Use a smaller device_train_microbatch_size, or shorter sequences.',
            f'{human_bytes(cause.bytes)} are of a batch; half the microbatch halves that.',
            frees=cause.bytes // 2,
            code=code.AUTO_MICROBATCH,
        )
    if isinstance(cause, KeptInEvaluation):
        keeper = f' in {cause.kept_by}' if cause.kept_by else ''
        return Advice(
            f'Stop keeping what {cause.line} allocates{keeper}, or keep copies on the host (x.cpu()).',
            f'{cause.batches} batches of the evaluation left {human_bytes(cause.bytes)}; a metric '
            'that is updated with each batch keeps only numbers.',
            frees=cause.bytes,
            code=code.DETACHED,
        )
    if isinstance(cause, KeptFromBefore):
        return Advice(
            f'Stop keeping what {next(iter(cause.places), "forward")} allocates.',
            f'Batches that have ended left {human_bytes(cause.bytes)}. Of a value that is kept, keep a number (loss.item()) or a '
            'copy on the host (x.detach().cpu()): a tensor with a graph keeps all activations of its batch.',
            frees=cause.bytes,
            code=code.DETACHED,
        )
    if isinstance(cause, LargeEvaluation):
        return Advice(
            "Evaluate in smaller batches: a smaller batch_size of the evaluation's DataLoader, or "
            'Evaluator(…, device_eval_microbatch_size=…).',
            f'An evaluation takes {human_bytes(cause.bytes)} and more.',
            frees=(cause.bytes - cause.training) // 2,
            code=code.SMALL_EVALUATION,
        )
    if isinstance(cause, EvaluationGraph):
        return Advice(
            'Evaluate under torch.no_grad(): gradients are enabled there, by eval_forward, a metric or the loop.',
            'An evaluation has no backward pass, so what is kept for one is of no use.',
            frees=cause.bytes,
            code=code.NO_GRAD,
        )
    if isinstance(cause, LargeCheckpoint):
        if cause.ranks > 1:
            what, pasted = (
                'Save sharded checkpoints, so that no rank gathers the whole state.',
                code.SHARDED_CHECKPOINTS,
            )
        else:
            what, pasted = 'Copy what is saved to host memory, one tensor at a time.', code.ON_HOST
        why = f'Saving takes {human_bytes(cause.bytes)} of the device, once for each checkpoint.'
        return Advice(what, why, frees=cause.bytes, code=pasted)
    if isinstance(cause, GatheredWhole):
        layers = cause.layers or "each of the model's layers"
        return Advice(
            f'Make {layers} units of FSDP of their own, so that one layer is gathered at a time.',
            f'{human_bytes(cause.piece)} are gathered in one piece.',
            frees=cause.bytes - cause.bytes // 4,
            code=code.UNITS.replace('blocks', cause.layers.removesuffix('.*').rpartition('.')[2] or 'blocks'),
        )
    if isinstance(cause, LargeBatch):
        return Advice(
            "Cut or bucket long inputs, so that batches are of one size; or set device_train_microbatch_size='auto'.",
            f'Batch {cause.batch} takes {human_bytes(cause.bytes)} and more, those before at most '
            f'{human_bytes(cause.before)}.',
            frees=cause.bytes - cause.before,
            code=code.AUTO_MICROBATCH,
        )
    if isinstance(cause, LargeTensors):
        half = (
            'half the microbatch halves that'
            if cause.what != 'attention'
            else 'they grow with the square of the sequence'
        )
        frees = cause.bytes if cause.what == 'attention' else cause.bytes // 2
        return Advice(
            _OF_TENSORS[cause.what],
            f'{human_bytes(cause.bytes)} are in {count_of(cause.tensors, "tensor")} of a batch; {half}.',
            frees=frees,
            code=code.FLASH if cause.what == 'attention' else code.AUTO_MICROBATCH,
        )
    if isinstance(cause, LargeRequest):
        is_attention = cause.what == 'attention'
        half = 'It grows with the square of the sequence' if is_attention else 'Half the microbatch halves it'
        if not cause.in_batch:
            return Advice(
                f'Make a smaller tensor at {cause.line or "that line"}, or compute it in parts.',
                f'It asked for {human_bytes(cause.bytes)} at once.',
                frees=cause.bytes // 2,
            )
        return Advice(
            _OF_TENSORS[cause.what],
            f'{half}, if it is made for each sample.',
            frees=cause.bytes if is_attention else cause.bytes // 2,
            code=code.FLASH if is_attention else code.AUTO_MICROBATCH,
        )
    if isinstance(cause, FullPrecision):
        return Advice(
            "Train with precision='amp_bf16' (amp_fp16 on a GPU older than an A100).",
            f'In fp32 activations take {human_bytes(cause.bytes)}, in half precision about half of that.',
            frees=cause.bytes // 2,
            code=code.BF16,
        )
    return _found(found, change=CHECKPOINT_BLOCKS) or _checkpoint(cause)


def _found(found: Sequence[Advice], change: str = '', setting: bool = False) -> Advice | None:
    return next((each for each in found if (setting and each.setting) or (change and each.change == change)), None)


def _checkpoint(cause: Layers) -> Advice:
    return Advice(
        f'Checkpoint the activations of {cause.name}.',
        f'{human_bytes(cause.bytes)} are kept for backward.',
        frees=cause.bytes,
        costs='its forward is computed again in backward',
        change=CHECKPOINT_BLOCKS,
        code=code.CHECKPOINTED,
    )


def _one_optimizer(cause: ModelState) -> Advice:
    lines = list(cause.steps)
    return Advice(
        f'Use one optimizer for the parameters: {" and ".join(lines)} step one each.',
        'Each has state of its own for every parameter.',
        frees=sum(cause.steps.values()) - cause.steps[lines[0]],
    )


def _less_state(cause: ModelState) -> Advice:
    if cause.ranks > 1:
        what = f'Shard the model over the {cause.ranks} ranks with FSDP.'
    else:
        what = 'Shard the model over several GPUs with FSDP, or use an optimizer with less state, such as an 8-bit one.'
    return Advice(
        what,
        f'{human_bytes(cause.bytes)} are parameters, gradients and optimizer state, however small the batch is.',
        frees=cause.bytes - cause.bytes // max(cause.ranks, 2),
        change=SHARD if cause.ranks > 1 else '',
        code=code.SHARDED,
    )
