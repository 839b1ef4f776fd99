"""Results whose size depends on values: masks, ``nonzero``, ``unique``. The runtime is told which part is kept."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from composer_memprof.simulated_gpu.this_process import figures
from composer_memprof.simulated_gpu.values import host, keys, reads, runtime
from composer_memprof.simulated_gpu.values.known import (
    EXPECTED,
    GUESSED,
    Entry,
    Rule,
    entry_of,
    is_plain,
    know,
    know_rule,
    view_of,
)

_IS_NEWER = tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 15)
_UNIQUE = ('_unique2', 'unique_dim', 'unique_consecutive', 'unique_dim_consecutive')


def install() -> None:
    """See each operator that counts."""
    keys.kernel('nonzero', nonzero)
    for name in ('', '.dim', '.dims'):
        keys.kernel(f'any{name}', _any)
    keys.kernel('repeat_interleave.Tensor', _repeat)
    for name in _UNIQUE:
        keys.kernel(name, functools.partial(unique, getattr(torch.ops.aten, name).default))


@functools.cache
def _kept_at() -> tuple[tuple[str, float], ...]:
    """Places and the part that is kept there, as the user gave them."""
    found = []
    for text in filter(None, figures().get('kept_at', '').split(',')):
        place, _, part = text.rpartition('=')
        found.append((place, float(part)))
    return tuple(found)


def _kept_here() -> float:
    """What the user gave for this line or one that called it; -1 if that is nothing."""
    if not _kept_at():
        return -1
    lines = reads.lines()
    for place, part in _kept_at():
        if any(line == place or line.endswith(os.sep + place) for line in lines):
            reads.note_kept(place)
            return part
    return -1


def kept_of_mask() -> float:
    """The part of a mask's elements that is set, where nobody knows its values: what ``nonzero`` would keep.

    A script that counts or asks before it selects does not leave by the answer.
    """
    here = _kept_here()
    part = here if here >= 0 else float(figures().get('kept', '1'))
    return 0.0 if reads.use().goes_on is False else part


def as_kept(tensor: torch.Tensor, entry: Entry) -> Entry:
    """What to count of a mask: of a guessed one its size by the part that is kept, and not by the guess."""
    if tensor.dtype != torch.bool or entry.sure != GUESSED or tensor.numel() < 2:
        return entry
    return Entry(entry.bytes, GUESSED, entry.version, rule=Rule(share=kept_of_mask()))


def _share_of(entry: Entry, tensor: torch.Tensor) -> float:
    """The part of the tensor's elements that are not zero."""
    if entry.values is not None:
        return int(view_of(entry, tensor).count_nonzero()) / max(tensor.numel(), 1)
    rule = entry.rule
    if rule is None:
        return 1.0
    if rule.below:
        return 1 - 1 / rule.below
    return rule.share if rule.value else 0.0


def nonzero(run: Callable[[], Any], tensor: torch.Tensor) -> Any:
    """As ``nonzero``, with which masks count too."""
    if not is_plain(tensor):
        return run()
    entry = entry_of(tensor)
    here = _kept_here()
    if here >= 0:
        share, sure = here, EXPECTED
    elif entry is None or entry.sure == GUESSED:
        share, sure = here, GUESSED
    else:
        with host.computing():
            share, sure = _share_of(entry, tensor), entry.sure
    result = runtime.keeping(share, run)
    _note(result, tensor, sure)
    if here >= 0 and tensor.numel():
        with host.computing():  # backward counts the same mask again
            know_rule(tensor, Rule(share=result.shape[0] / tensor.numel()), EXPECTED)
    elif entry is not None and entry.values is not None and is_plain(result):
        with host.computing():
            values = view_of(entry, tensor).nonzero()
            if values.shape == result.shape:
                know(result, values, sure, is_new=True)
    return result


def _note(result: Any, tensor: torch.Tensor, sure: int) -> None:
    if isinstance(result, torch.Tensor):
        count, total = result.shape[0], tensor.numel()
        reads.note(reads.SHAPE, lambda _: f'{count} of {total}', sure)


def _any(run: Callable[[], Any], tensor: torch.Tensor, *_: Any, **__: Any) -> Any:
    """Whether any is set in a mask: as many as ``nonzero`` would find."""
    result = run()
    entry = entry_of(result) if isinstance(result, torch.Tensor) and is_plain(result) else None
    if is_plain(result) and (entry is None or entry.sure == GUESSED) and tensor.numel():
        with host.computing():
            is_set = tensor.dtype == torch.bool and tensor.numel() > 1 and kept_of_mask() > 0
            if entry is None or is_set or tensor.numel() > 1:
                know_rule(result, Rule(value=int(is_set)), GUESSED)
    return result


def unique(operator: Any, run: Callable[[], Any], tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
    """As torch's operators of this name; of known values the host finds them first."""
    if not is_plain(tensor):
        return run()
    entry, here = entry_of(tensor), _kept_here()
    if entry is None or entry.values is None or here >= 0 or not tensor.numel():
        result = runtime.keeping(here, run)
        _note(result[0], tensor, GUESSED if here < 0 else EXPECTED)
        return result
    with host.computing():
        values = view_of(entry, tensor)
        computed = operator(values, *arguments, **keywords)
        items = tensor.numel()
        if 'dim' in operator.name():
            items = tensor.shape[arguments[0] if arguments else keywords.get('dim', 0)]
        share = computed[0].shape[0] / items
        if tensor.dtype == torch.bool and operator.name() == 'aten::_unique2':
            share = int(values.count_nonzero()) / items
    result = runtime.keeping(share, run)
    _note(result[0], tensor, entry.sure)
    with host.computing():
        for on_device, on_host in zip(result, computed, strict=True):
            if on_device is not None and on_host is not None and on_device.shape == on_host.shape:
                know(on_device, on_host, entry.sure, is_new=True)
    return result


def _repeat(run: Callable[[], Any], repeats: Any, *, output_size: Any = None) -> Any:
    """As ``repeat_interleave``: unknown repeats are 1. It allocates as torch's own in ``ATen/native/Repeat.h``."""
    if output_size is not None or not is_plain(repeats) or repeats.dim() != 1 or entry_of(repeats) is not None:
        return run()
    contiguous = repeats.contiguous()
    cumsum = repeats.cumsum(0)
    if _IS_NEWER:
        repeats.min().item()
    else:
        not_negative = repeats >= 0
        not_negative.all().item()
        del not_negative  # later than what all returned
    runtime.assumed('repeat_interleave repeats every element once, unless output_size is given')
    result = torch.empty(repeats.numel(), dtype=repeats.dtype, device=repeats.device)
    reads.note(reads.SHAPE, lambda _: f'{repeats.numel()} of {repeats.numel()}', GUESSED)
    del contiguous, cumsum
    return result
