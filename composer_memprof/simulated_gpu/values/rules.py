"""Operators on tensors of which only a rule is known: what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from composer_memprof.simulated_gpu.values.known import Entry, Rule, is_plain, know, know_rule

_SAME = ('clone', 'repeat', 'index_select', 'gather', 'index', 'cat', 'flip', 'roll')
_NOT = ('logical_not', 'bitwise_not')
_SUMS = ('sum', 'count_nonzero')
_MOST, _LEAST = ('max', 'amax'), ('min', 'amin')


def of_host(tensor: torch.Tensor) -> Optional[Rule]:
    """What a rule can say of the host's integers: of a mask the share that is set, of others that they are below a number."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or not tensor.numel():
        return None
    smallest, largest = (int(each) for each in tensor.aminmax())
    if smallest < 0:
        return None
    if largest <= 1:
        return Rule(share=int(tensor.count_nonzero()) / tensor.numel())
    return Rule(below=largest + 1)


def follow(
    operator: Any, tensors: Sequence[torch.Tensor], entries: Sequence[Entry], arguments: Any, result: torch.Tensor
) -> bool:
    """Keep what the rules of the operator's tensors say of its result; returns whether they say anything."""
    if not is_plain(result) or entries[0].rule is None:
        return False
    tensor = tensors[0]
    sure = max(entry.sure for entry in entries)
    rule, name = entries[0].rule, operator.name().partition('::')[2].partition('.')[0]
    if name in _SUMS and not rule.below:
        total = round(tensor.numel() * rule.share * (1 if name == 'count_nonzero' else rule.value))
        each = torch.arange(result.numel())
        parts = total // max(result.numel(), 1) + (each < total % max(result.numel(), 1))
        know(result, parts.reshape(result.shape).to(result.dtype), sure)
        return True
    found = _rule(operator, name, rule, tensor, entries, arguments, result)
    if found is not None:
        know_rule(result, found, sure)
    return found is not None


def _rule(
    operator: Any, name: str, rule: Rule, tensor: torch.Tensor, entries: Sequence[Entry], arguments: Any, result: Any
) -> Optional[Rule]:
    if name in _SAME and all(entry.rule == rule for entry in entries if entry.rule is not None):
        return rule
    if name in _NOT and not rule.below:
        return Rule(share=1 - rule.share) if rule.value else Rule()
    if name in ('eq', 'ne') and rule.below:
        return Rule(share=1 / rule.below if name == 'eq' else 1 - 1 / rule.below)
    if name in ('any', 'all') and not rule.below:
        together = tensor.numel() / max(result.numel(), 1)
        share = rule.share if rule.value else 0.0
        return Rule(share=min(1.0, share * together)) if name == 'any' else Rule(value=int(share >= 1))
    if name in _MOST:
        return Rule(value=rule.below - 1 if rule.below else rule.value)
    if name in _LEAST:
        return Rule(value=0 if rule.below or rule.share < 1 else rule.value)
    if torch.Tag.pointwise in operator.tags and all(_is_constant(entry) for entry in entries):
        return _constant(operator, entries, arguments)
    return None


def _is_constant(entry: Entry) -> bool:
    return entry.rule is not None and not entry.rule.below and entry.rule.share >= 1


def _constant(operator: Any, entries: Sequence[Entry], arguments: Any) -> Rule:
    """The operator on one element of each."""
    left = iter(entries)

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.full((1,), next(left).rule.value, dtype=value.dtype)  # type: ignore[union-attr]

    return Rule(value=operator(*(one(each) for each in arguments)).item())
