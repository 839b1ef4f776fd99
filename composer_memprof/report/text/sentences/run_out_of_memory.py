"""Why the memory of a device ran out, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from composer_memprof.analysis.run_report.causes.ran_out_kinds import (
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
    ModelState,
    OutsideUse,
    RanOut,
)
from composer_memprof.analysis.run_report.causes.ran_out_parts import KeptInCopy, UnusedGradients, UselessGraph
from composer_memprof.messages import count_of, human_bytes
from composer_memprof.vocabulary import CATEGORY_LABELS

#: Most lines of a sentence.
_LINES = 3
#: A line of less than this share of the largest is not named.
_LEAST = 0.02
_TENSORS = {
    'logits': 'the logits and their copies',
    'attention': "attention's scores, which flash attention does not keep",
    '': 'a few large tensors',
}
#: What a single tensor is.
_ASKED = {'logits': 'the logits or a copy of them', 'attention': "attention's scores"}


def out_of_memory_sentence(cause: RanOut, rank: str) -> str:
    """One sentence about the reason.

    Args:
        cause (RanOut): the reason.
        rank (str): `` on rank 3``, or ``''``.
    """
    begin, share = f'Memory ran out{rank}', f'{100 * cause.cost:.0f} %'
    if isinstance(cause, OutsideUse):
        return (
            f'{begin} because {human_bytes(cause.bytes)} of {human_bytes(cause.total)} ({share}) are used outside of '
            "torch: by other processes, or by this one's libraries."
        )
    if isinstance(cause, Fragmented):
        return (
            f'{begin} because of fragmentation: {human_bytes(cause.idle)} ({share} of what torch reserved) lay idle, the '
            f'largest piece {human_bytes(cause.hole)}, when {human_bytes(cause.requested)} were asked for.'
        )
    if isinstance(cause, ModelState):
        parts = ', '.join(f'{CATEGORY_LABELS.get(key, key)} {human_bytes(size)}' for key, size in cause.parts.items())
        text = f"{begin} because of the model's own state: {human_bytes(cause.bytes)} ({share} of what is in use): {parts}."
        steps = ' and '.join(f'{line} ({human_bytes(size)})' for line, size in list(cause.steps.items())[:_LINES])
        return f'{text} Several lines step an optimizer with state of its own: {steps}.' if steps else text
    if isinstance(cause, BesideModel):
        kept = ' and '.join(f'{keeper} ({human_bytes(size)})' for keeper, size in list(cause.kept.items())[:_LINES])
        return (
            f'{begin} because of what is no part of the model: {human_bytes(cause.bytes)} ({share} of what is in use) '
            f'lay on the device before the recording began, kept by {kept}.'
        )
    if isinstance(cause, LargeEvaluation):
        training = f', where training peaks at {human_bytes(cause.training)}' if cause.training else ''
        most = f', most of it by {_largest(cause.places)}' if cause.places else ''
        return f'{begin} in evaluation: it needs {human_bytes(cause.bytes)} and more{training}{most}.'
    if isinstance(cause, KeptInEvaluation):
        keeper = f' by {cause.kept_by}' if cause.kept_by else ''
        return (
            f'{begin} in evaluation because its batches leave memory behind: what {cause.line} allocates is kept{keeper}, '
            f'{human_bytes(cause.bytes / max(cause.batches, 1))} more in each batch of the evaluation, '
            f'{human_bytes(cause.bytes)} ({share} of what is in use) by now.'
        )
    if isinstance(cause, KeptFromBefore):
        return (
            f'{begin} because of what earlier batches have left: {human_bytes(cause.bytes)} ({share} of what is in use) '
            f'that they allocated in forward is kept: {_largest(cause.places)}.'
        )
    if isinstance(cause, EvaluationGraph):
        module = f' from {cause.module} on' if cause.module else ''
        return (
            f'{begin} in evaluation, which records a graph for backward{module}: activations are kept, '
            f'{human_bytes(cause.bytes)} ({share} of what is in use), most of them by {cause.line}.'
        )
    if isinstance(cause, UselessGraph):
        return (
            f'{begin} because {cause.module}, which is not trained, records a graph for backward: its activations are '
            f'kept, {human_bytes(cause.bytes)} ({share} of what is in use). It is called in {cause.line}.'
        )
    if isinstance(cause, UnusedGradients):
        modules = ' and '.join(list(cause.modules)[:_LINES])
        return (
            f"{begin} because of the model's own state, {human_bytes(cause.state)}: {human_bytes(cause.bytes)} ({share} of "
            f'what is in use) of it are gradients of {modules}, which no optimizer uses.'
        )
    if isinstance(cause, KeptInCopy):
        copies = ' and '.join(f'{name} ({human_bytes(size)})' for name, size in cause.copies.items())
        return (
            f"{begin} because of the model's own state, {human_bytes(cause.state)}: {human_bytes(cause.bytes)} ({share} of "
            f'what is in use) of it are a copy of the model, {copies}.'
        )
    if isinstance(cause, Activations):
        return (
            f'{begin} because of the activations of a batch: {human_bytes(cause.bytes)} ({share} of what is in use): '
            f'{_largest(cause.places)}.'
        )
    if isinstance(cause, LargeCheckpoint):
        return (
            f'{begin} while a checkpoint was saved: that takes {human_bytes(cause.bytes)} and more beside the '
            f"{human_bytes(cause.state)} of the model's own state: {_largest(cause.places)}."
        )
    if isinstance(cause, GatheredWhole):
        return (
            f'{begin} because FSDP gathers much of the model at once: {human_bytes(cause.bytes)} of whole parameters '
            f'({share} of what is in use), {human_bytes(cause.piece)} of them in one piece.'
        )
    if isinstance(cause, LargeBatch):
        why = f', whose inputs are {cause.factor:.1f} times as large as any before' if cause.factor else ''
        return (
            f'{begin} in batch {cause.batch}{why}: it needs {human_bytes(cause.bytes)} and more, where the batches before '
            f'peak at {human_bytes(cause.before)}.'
        )
    if isinstance(cause, LargeRequest):
        line = cause.line or 'a line that was not recorded'
        what = f', for {_ASKED[cause.what]}' if cause.what else ''
        return (
            f'{begin} because of one tensor: {line} asked for {human_bytes(cause.bytes)}{what}, where '
            f'{human_bytes(cause.in_use)} were in use.'
        )
    if isinstance(cause, LargeTensors):
        return (
            f'{begin} because of {_TENSORS[cause.what]}: {count_of(cause.tensors, "tensor")} took '
            f'{human_bytes(cause.bytes)} ({share} of what is in use): {_largest(cause.places)}.'
        )
    if isinstance(cause, FullPrecision):
        return f'{begin} in fp32: activations take {human_bytes(cause.bytes)} ({share} of what is in use), in bf16 half of that.'
    return (
        f'{begin} because of the activations of {cause.name}: {human_bytes(cause.bytes)} ({share} of what is in use).'
    )


def _largest(places: Mapping[str, int]) -> str:
    least = _LEAST * max(places.values(), default=0)
    shown = [f'{human_bytes(size)} by {line}' for line, size in places.items() if size >= least]
    return ', '.join(shown[:_LINES])
