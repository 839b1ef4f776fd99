"""Operators on values that are known: torch runs them on the device, and here they run on the host as well.

Views need nothing: their storage is known. An operator that is made of others is left to these.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import torch

from composer_memprof.messages import log_error
from composer_memprof.simulated_gpu.values import counting, host, keys, reading, rules
from composer_memprof.simulated_gpu.values.known import (
    EXPECTED,
    GUESSED,
    REAL,
    Entry,
    entry_of,
    fills_storage,
    forget,
    is_plain,
    is_small,
    know,
    used_with_unknown,
    view_of,
    wrote,
)


class _Operator:
    """What an operator's schema says.

    Attributes:
        is_view: its result is a view of its argument; or it has a kernel of ours for each call (``EVERY``).
        is_kernel: it runs on the device itself, and does not consist of others.
        writes: the arguments that it writes to, by place and by name.
        takes_numbers: it may put a number on the device, as a tensor for an operator that it calls.
        overwrites: what it writes to is no input of it.
        counts: it says how many elements are set.
    """

    def __init__(self, operator: Any) -> None:
        name, schema = operator.name(), operator._schema
        self.writes = tuple(
            (place, each.name)
            for place, each in enumerate(schema.arguments)
            if each.alias_info is not None and each.alias_info.is_write
        )
        self.is_view = name in _LEFT or (
            not self.writes and any(each.alias_info is not None for each in schema.returns)
        )
        self.is_copy = name == 'aten::copy_'
        self.is_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(name, 'CUDA')
        self.is_random = torch.Tag.nondeterministic_seeded in operator.tags
        self.takes_numbers = any('number' in str(each.type) for each in schema.arguments)
        self.overwrites = schema.overload_name.endswith('out') or schema.name in _OVERWRITE
        self.counts = schema.name in ('aten::sum', 'aten::count_nonzero')
        self.leaves_found_inf = name == 'aten::_amp_foreach_non_finite_check_and_unscale_'


_operator = functools.cache(_Operator)
_OVERWRITE = ('aten::fill_', 'aten::zero_')
#: What has a kernel of its own for each call (``EVERY``), or consists of ``copy_``.
_LEFT = (
    *('aten::_local_scalar_dense', 'aten::nonzero', 'aten::_to_copy'),
    *('aten::_unique2', 'aten::unique_dim', 'aten::unique_consecutive', 'aten::unique_dim_consecutive'),
)


def follow(keyset: Any, operator: Any, *arguments: Any, **keywords: Any) -> Any:
    """The fallback of each operator that gets a tensor whose values are known."""
    about = _operator(operator)
    if about.is_view:
        return keys.go_on(keys.FOLLOWED, keyset, operator, arguments, keywords)
    if about.is_copy:
        run = functools.partial(keys.go_on, keys.FOLLOWED, keyset, operator, arguments, keywords)
        return reading.copy_into(run, *arguments, **keywords)
    written = list(_written(about, arguments, keywords))
    # before it runs: what it writes to counts as written by others afterwards
    unread = [each for each in written if about.overwrites and fills_storage(each)]
    entries = _entries(arguments, keywords, unread)
    if about.takes_numbers:
        result = keys.go_on_unseen(keyset, operator, arguments, keywords)
    else:
        result = keys.go_on(keys.FOLLOWED, keyset, operator, arguments, keywords)
    outputs = [each for each in tensors_in(result) if not any(each is other for other in written)]
    try:
        if about.leaves_found_inf:
            wrote(arguments[1], EXPECTED)
            return result
        is_known = not about.is_kernel and outputs and not written and all(map(entry_of, outputs))
        if is_known or (
            entries is not None and _compute(operator, about, arguments, keywords, result, written, entries)
        ):
            return result
    except Exception:  # what the host can't compute is not known
        log_error(f'{operator} could not be computed on the host')
    for each in (*written, *(outputs if about.is_kernel else ())):
        forget(each)
    return result


def _compute(
    operator: Any,
    about: _Operator,
    arguments: Any,
    keywords: Any,
    result: Any,
    written: list[torch.Tensor],
    entries: list[tuple[torch.Tensor, Entry]],
) -> bool:
    """Whether the values of all that the operator made or wrote to are known now."""
    sure = max((entry.sure for _, entry in entries), default=REAL)
    if about.counts and sure == GUESSED:
        entries = [(each, counting.as_kept(each, entry)) for each, entry in entries]
    if any(entry.values is None for _, entry in entries):
        if written or not isinstance(result, torch.Tensor):
            return False
        with host.computing():
            return rules.follow(
                operator, [each for each, _ in entries], [entry for _, entry in entries], arguments, result
            )
    changed = [*written, *tensors_in(result)]
    if any(not is_plain(each) or not is_small(each.untyped_storage().nbytes(), each.dtype) for each in changed):
        return False
    with host.computing(is_random=about.is_random):
        on_host = {id(each): view_of(entry, each) for each, entry in entries}
        for each in written:
            if id(each) not in on_host:
                on_host[id(each)] = torch.empty(each.shape, dtype=each.dtype)
        given, named = (host.as_on_host(each, on_host) for each in (arguments, keywords))
        computed = operator(*given, **named)
        for each in written:
            if any(each is other for other, _ in entries):
                wrote(each, sure)
            else:
                know(each, on_host[id(each)], sure)
                wrote(each, sure)
        for output, values in zip(tensors_in(result), tensors_in(computed), strict=True):
            if not any(output is each for each in written):
                know(output, values, sure, is_new=True)
    return True


def _entries(
    arguments: Any, keywords: Any, unread: Sequence[torch.Tensor]
) -> Optional[list[tuple[torch.Tensor, Entry]]]:
    """What is known of each tensor on the device that is read; None if one is not known."""
    found: list[tuple[torch.Tensor, Entry]] = []
    is_known = True
    for tensor in tensors_in((arguments, tuple(keywords.values()))):
        if (tensor.device.type == 'cpu' and type(tensor) is torch.Tensor) or any(tensor is each for each in unread):
            continue
        entry = entry_of(tensor)
        if entry is None:
            is_known = False
        else:
            found.append((tensor, entry))
    if is_known:
        return found
    for tensor, entry in found:
        used_with_unknown(tensor, entry)
    return None


def _written(about: _Operator, arguments: Any, keywords: Any) -> Iterator[torch.Tensor]:
    for place, name in about.writes:
        given = arguments[place] if place < len(arguments) else keywords.get(name)
        yield from tensors_in(given)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists and tuples, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)
