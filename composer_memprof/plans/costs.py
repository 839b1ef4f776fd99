"""What a change costs beside memory, as measured: the step's FLOPs and the bytes that a rank sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Optional

from composer_memprof.messages import human_bytes
from composer_memprof.plans.trial import Outcome

#: The smallest difference that is put into words.
_SMALLEST = 0.005
#: From here on, in times as much.
_TIMES = 4


@dataclasses.dataclass(frozen=True)
class Costs:
    """The differences of a batch to that of the config as it is; above 0 is more.

    Attributes:
        flops: with what is done again; None if they were not counted, since the change leaves them as they are.
        sent: bytes that a rank sends.
        sent_between_nodes: of these, those within groups of ranks that are on several nodes.
    """

    flops: Optional[int]
    sent: int
    sent_between_nodes: int


def costs_of(base: Outcome, changed: Outcome) -> Costs:
    """The costs of a change, from the outcomes without and with it."""
    known = base.step_flops is not None and changed.step_flops is not None
    return Costs(
        (changed.step_flops or 0) - (base.step_flops or 0) if known else None,
        changed.all_sent - base.all_sent,
        changed.sent_between_nodes - base.sent_between_nodes,
    )


def costs_in_words(costs: Costs, base: Outcome) -> Iterator[str]:
    """Each difference that matters, relative to the config as it is. FLOPs do where times are not known.

    >>> base = Outcome(flops=100, sent={'all_gather': 200})
    >>> list(costs_in_words(Costs(flops=25, sent=-100, sent_between_nodes=0), base))
    ['+25% FLOPs', '-50% sent']
    """
    if base.time is None and costs.flops and base.step_flops and abs(costs.flops) >= _SMALLEST * base.step_flops:
        yield f'{costs.flops / base.step_flops:+.0%} FLOPs'
    total = _difference(costs.sent, base.all_sent)
    between = _difference(costs.sent_between_nodes, base.sent_between_nodes)
    if total:
        yield f'{total} sent'
    if between and between != total:
        yield f'{between} sent between nodes'


def _difference(more: int, base: int) -> str:
    if abs(more) <= _SMALLEST * base:
        return ''
    if not base:
        return human_bytes(more)
    return f'{more / base:+.0%}' if more < _TIMES * base else f'{1 + more / base:.0f} times the bytes'
