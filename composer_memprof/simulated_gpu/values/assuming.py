"""What a training that works would see, of values that nobody can know without the kernels.

- Nothing is NaN or infinite, everything is finite and close, and matrices can be factorized.
- ``all`` of a check is true, and ``any`` of a fault is false (``any`` of other masks is one of the counts).
- A number that is compared is what the host would read of it. Of many, the part that masks keep compares as true.
- What an index is chosen by (``argmax``, ``topk``, ``sort``, ``multinomial``) does not favor any: choices are spread evenly,
  so that each expert of ``n`` gets ``k`` of ``n`` tokens. The first choice is in the middle, far from the tokens that
  end a text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch

from composer_memprof.simulated_gpu.values import counting, host, keys, reading, runtime
from composer_memprof.simulated_gpu.values.known import (
    EXPECTED,
    GUESSED,
    Rule,
    entry_of,
    is_plain,
    is_small,
    know,
    know_rule,
    values_of,
    view_of,
)

_FAULTS = ('isnan', 'isinf', 'isposinf', 'isneginf')
_CHECKS = ('isfinite', 'isclose')
_COMPARED = ('eq', 'ne', 'lt', 'le', 'gt', 'ge')
#: The place of the dimension among the arguments, and of the indices among the results.
_CHOICES = {
    'argmax': (1, None),
    'argmin': (1, None),
    'multinomial': (-1, None),
    'argsort': (1, None),
    'topk': (2, 1),
    'sort': (1, 1),
    'sort.stable': (2, 1),
    'max.dim': (1, 1),
    'min.dim': (1, 1),
    'kthvalue': (2, 1),
    'median.dim': (1, 1),
    'mode': (1, 1),
}


def install() -> None:
    """See the operators that check, compare and choose."""
    for name in _FAULTS:
        keys.kernel(name, _giving(Rule(value=0), EXPECTED))
    for name in _CHECKS:
        keys.kernel(name, _giving(Rule(), EXPECTED))
    for name in ('', '.dim', '.dims'):
        keys.kernel(f'all{name}', _giving(Rule(), GUESSED))
    for name in _COMPARED:
        for overload in ('Scalar', 'Tensor'):
            keys.kernel(f'{name}.{overload}', _comparing(getattr(torch.ops.aten, name).Tensor))
    for name, (dimension, index) in _CHOICES.items():
        keys.kernel(name, _choosing(dimension, index))
    keys.kernel('_linalg_check_errors', lambda run, *_, **__: None)
    keys.kernel('bincount', _bincount)
    keys.kernel('histc', _histc)
    for name in ('scatter.value', 'scatter_.value'):
        keys.kernel(name, _scatter)


def _giving(rule: Rule, sure: int) -> Callable[..., Any]:
    def give(run: Callable[[], Any], *_: Any, **__: Any) -> Any:
        result = run()
        entry = entry_of(result) if isinstance(result, torch.Tensor) and is_plain(result) else None
        if entry is None or entry.sure == GUESSED:
            with host.computing():
                know_rule(result, rule, sure)
        return result

    return give


def _comparing(operator: Any) -> Callable[..., Any]:
    def compare(run: Callable[[], Any], one: Any, other: Any) -> Any:
        result = run()
        if not isinstance(result, torch.Tensor) or not is_plain(result) or entry_of(result) is not None:
            return result
        values = [_representative(each) for each in (one, other)]
        if any(each is None for each in values):
            return result
        with host.computing():
            found = operator(torch.as_tensor(values[0]), torch.as_tensor(values[1]))
            if result.numel() > 1:
                know_rule(result, Rule(share=counting.kept_of_mask()), GUESSED)
            elif found.numel() == 1:
                know_rule(result, Rule(value=bool(found)), GUESSED)
            else:
                know(result, found.expand(result.shape), GUESSED)
        return result

    return compare


def _representative(value: Any) -> Any:
    """What stands for it in a comparison: its values if they are known, or one for all of its elements."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == 'cpu':
        return value if is_small(value.numel() * value.itemsize, value.dtype) else None
    entry = entry_of(value)
    if entry is not None:
        if entry.values is not None:
            return view_of(entry, value)
        return None if entry.rule is None or entry.rule.below or entry.rule.share < 1 else entry.rule.value
    if not is_plain(value):
        return None
    return reading.guessed(value.dtype) if value.numel() == 1 or not value.is_floating_point() else reading.USUAL


def _choosing(dimension: int, index: Optional[int]) -> Callable[..., Any]:
    def choose(run: Callable[[], Any], tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        result = run()
        chosen = result if index is None else result[index]
        if not is_plain(chosen) or entry_of(chosen) is not None:
            return result
        given = keywords.get('dim', arguments[dimension - 1] if len(arguments) >= dimension > 0 else -1)
        among = tensor.numel() if given is None else tensor.shape[given] if tensor.dim() else 1
        with host.computing():
            know_rule(chosen, Rule(below=max(among, 1)), EXPECTED)
        return result

    return choose


def _evenly(total: int, parts: int, dtype: torch.dtype) -> torch.Tensor:
    """``total`` in so many parts, the first ones greater by 1."""
    numbers = torch.arange(parts)
    return (total // parts + (numbers < total % parts)).to(dtype)


def _bincount(run: Callable[[], Any], tensor: Any, *arguments: Any, **keywords: Any) -> Any:
    result = run()
    if is_plain(result) and entry_of(result) is None and result.numel():
        with host.computing():
            know(result, _evenly(tensor.numel(), result.numel(), result.dtype), EXPECTED)
        runtime.assumed('bincount spreads its elements evenly over minlength bins')
    return result


def _histc(run: Callable[[], Any], tensor: Any, *arguments: Any, **keywords: Any) -> Any:
    return _bincount(run, tensor)


def _scatter(run: Callable[[], Any], tensor: Any, dim: int, index: Any, value: Any) -> Any:
    """As in ``one_hot``, which writes into zeros: of each row one element is set."""
    result = run()
    if is_plain(result) and entry_of(result) is None and value == 1 and index.dim() and result.numel():
        chosen = values_of(index)
        with host.computing():
            if not is_small(result.untyped_storage().nbytes(), result.dtype):
                know_rule(result, Rule(share=min(1.0, index.numel() / result.numel())), EXPECTED)
            elif chosen is not None:
                know(result, torch.zeros(result.shape, dtype=result.dtype).scatter(dim, chosen, 1), EXPECTED)
    return result
