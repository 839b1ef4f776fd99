"""What the host reads: the value where it is known, and otherwise one that a working training could have.

A number is positive and less than 1, so that it is a loss, a norm and a probability, and falls a little each time that
the same line reads it. A count is 1, a yes or no is no.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch

from composer_memprof.simulated_gpu.values import host, keys, reads, repeated, rules, runtime, traceable
from composer_memprof.simulated_gpu.values.known import (
    GUESSED,
    PLAIN,
    REAL,
    Entry,
    entry_before_write,
    entry_of,
    forget,
    is_plain,
    is_small,
    know,
    know_rule,
    values_of,
    view_of,
    wrote,
)

#: What a number among others is taken to be.
USUAL = 0.5
_HOST = torch.device('cpu')


def install() -> None:
    """See each read, and each copy from and to the host."""
    keys.replace_on_device('_local_scalar_dense', read_one)
    for name in ('cpu', 'cuda', 'to', 'copy_'):
        _see_copies(name)
    torch.nn.Module._apply = traceable.in_place_of(torch.nn.Module._apply, _apply)  # type: ignore[method-assign]
    torch.Tensor.tolist = traceable.in_place_of(torch.Tensor.tolist, _tolist)  # type: ignore[method-assign]


def guessed(dtype: torch.dtype, times: int = 0) -> Any:
    """The value for a single element that is read for the ``times``-th time."""
    if dtype == torch.bool:
        return False
    if not dtype.is_floating_point and not dtype.is_complex:
        return 1
    return USUAL + 0.4 / (1 + 0.01 * times)


def read_one(tensor: torch.Tensor) -> Any:
    """As ``item``: what the host gets in place of the zero that a copy has."""
    with keys.quiet():  # the copy waits for the device, and fails in the capture of a graph
        zero = torch.ops.aten._to_copy.default(tensor, device=_HOST).item()
    if not is_plain(tensor):
        return zero
    entry = entry_of(tensor)
    what = _decides(tensor.dtype)
    if entry is not None and entry.values is not None:
        with host.computing():
            value = view_of(entry, tensor).item()
        asked = _without_fault(value, entry.sure)
        given = reads.note(what, lambda _: repeated.answer(asked, entry.sure, entry.below), entry.sure)
        if given is not value:
            with host.computing():
                view_of(entry, tensor).fill_(given)
        return given
    if entry is not None and entry.rule is not None:
        rule = entry.rule
        return reads.note(what, lambda _: type(zero)(rule.below // 2 if rule.below else rule.value), entry.sure)
    if runtime.holds(tensor):
        return zero  # it is none: a kernel's count
    value = reads.note(what, lambda times: repeated.answer(guessed(tensor.dtype, times), GUESSED), GUESSED)
    with host.computing():
        know(tensor, torch.tensor(value, dtype=tensor.dtype), GUESSED)
    return value


def _without_fault(value: Any, sure: int) -> Any:
    """A yes or no; a guessed one is that with which a check of the script finds no fault."""
    if not isinstance(value, bool) or sure != GUESSED or reads.is_by_torch():
        return value
    use = reads.use()
    return use.goes_on if use.is_checked and use.goes_on is not None else value


def _decides(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return reads.BRANCH
    return reads.NUMBER if dtype.is_floating_point or dtype.is_complex else reads.SHAPE


def copy_into(run: Callable[[], Any], to: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any) -> Any:
    """As ``copy_``, one of whose tensors has known values."""
    entry = _entry_of_source(source)  # a copy to the same storage would count as unseen afterwards
    result = run()
    if to.device.type == 'cpu':
        if entry is not None and entry.values is not None:
            _fill(to, view_of(entry, source), source)
    elif is_plain(to):
        _wrote_to(to, source, entry)
    return result


def _wrote_to(to: torch.Tensor, source: torch.Tensor, entry: Optional[Entry]) -> None:
    """Keep what was copied to the device."""
    if entry is None:
        forget(to)
    elif entry.values is None and entry.rule is not None:
        know_rule(to, entry.rule, entry.sure)
    else:
        values = source if source.device.type == 'cpu' else view_of(entry, source)
        before = entry_before_write(to)
        with host.computing():
            if before is None:
                know(to, values.expand(to.shape), entry.sure)
            else:
                view_of(before, to).copy_(values)
                wrote(to, entry.sure)


def _entry_of_source(source: torch.Tensor) -> Optional[Entry]:
    """What is known of a tensor that is copied from; the host's own values are."""
    if source.device.type != 'cpu':
        return entry_of(source)
    if type(source) is not torch.Tensor:
        return None
    if is_small(source.numel() * source.itemsize, source.dtype):
        return Entry(0, REAL, 0, torch.UntypedStorage(0))
    with host.computing():
        rule = rules.of_host(source)
    return None if rule is None else Entry(0, REAL, 0, rule=rule)


def _fill(on_host: torch.Tensor, values: torch.Tensor, source: torch.Tensor) -> None:
    entry = entry_of(source)
    sure = REAL if entry is None else entry.sure
    with host.computing():
        on_host.detach().copy_(values)
    reads.note(_decides(source.dtype), lambda _: _text(on_host), sure)
    if entry is None or sure == REAL:
        return
    with host.computing():
        first = values.flatten()[0].item()
    given = repeated.answer(first, sure, entry.below)
    if given is not first:
        with host.computing():
            on_host.detach().fill_(given)
            view_of(entry, source).fill_(given)


def _text(values: torch.Tensor) -> str:
    with host.computing():
        first = values.detach().flatten()[:8].tolist()
    return ', '.join(f'{each:.4g}' if isinstance(each, float) else str(each) for each in first)


def _see_copies(name: str) -> None:
    """Let the method keep what it copies from the host, and give the host what it could expect of the device."""

    def method(original: Any, arguments: Any, keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        tensor, *others = arguments
        if result is tensor and name != 'copy_':
            return result
        source = others[0] if name == 'copy_' and others else tensor
        if type(result) in PLAIN and isinstance(source, torch.Tensor) and result.is_cuda != source.is_cuda:
            if source.is_cuda and is_plain(source):
                _give(result, source)
            elif is_plain(result) and (entry := _entry_of_source(source)) is not None:
                _wrote_to(result, source, entry)
        return result

    setattr(torch.Tensor, name, traceable.in_place_of(getattr(torch.Tensor, name), method))


def _apply(original: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
    """Follow no weights that a module moves to the device: nobody knows them after the first step.

    A compiled model would be compiled again once they are not followed any longer.
    """
    module = original(*arguments, **keywords)
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None and is_plain(tensor) and tensor.is_floating_point():
            keys.unmark(tensor)
    return module


def _give(result: torch.Tensor, source: torch.Tensor) -> None:
    """Fill a small copy of what is not known, or is known without that operators see it."""
    if not result.numel():
        return
    if not is_small(result.numel() * result.itemsize, result.dtype):
        reads.note(reads.NUMBER, lambda _: f'{result.numel():,} zeros', GUESSED)
        return
    if keys.is_marked(source) and values_of(source) is not None:
        return  # the copy has them
    values = values_of(source)
    if values is None:
        if runtime.holds(source):
            return
        times = reads.times(_decides(source.dtype), GUESSED) if result.numel() == 1 else 0
        value = guessed(source.dtype, times) if result.numel() == 1 or not source.is_floating_point() else USUAL
        with host.computing():
            values = torch.full(source.shape, value, dtype=source.dtype)
            know(source, values, GUESSED)
    _fill(result, values, source)


def _tolist(original: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
    tensor, *others = arguments
    return original(tensor.cpu() if is_plain(tensor) else tensor, *others, **keywords)
