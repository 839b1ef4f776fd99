"""How long a collective takes: what a rank sends in a ring over the slowest link, and a beginning for each rank."""

from __future__ import annotations

from composer_memprof.simulated_gpu.rates import (
    BETWEEN_NODES,
    COLLECTIVE_BEGINS,
    COLLECTIVE_STEP,
    LINK_REACHED,
    Rates,
)


def collective_seconds(rates: Rates, sent: float, ranks: int, between_nodes: bool) -> float:
    """Seconds of a collective.

    Args:
        sent: bytes that a rank sends, as ``ranks.traffic`` counts them.
        ranks: of the group.
        between_nodes: whether they are on several nodes. All ranks of a node then share its links to others.
    """
    link = rates.link
    if between_nodes:
        link = min(link, BETWEEN_NODES)
    return COLLECTIVE_BEGINS + ranks * COLLECTIVE_STEP + sent / (link * LINK_REACHED)
