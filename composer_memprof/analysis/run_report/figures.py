"""The figures in one file of one rank, in one form for all kinds of files, so that ranks can be compared."""

from __future__ import annotations

from dataclasses import dataclass

#: The groups of figures.
TOTAL, CATEGORY, MODULE, PHASE = 'total', 'category', 'module', 'phase'


@dataclass(frozen=True)
class Figures:
    """What one file of one rank says, as numbers.

    Args:
        kind (str): of the artifact, such as ``'memory_snapshot'``.
        rank (int): its rank.
        batch (int): at which it was saved.
        unit (str): ``'bytes'``, ``'seconds'`` or ``'flops'``.
        values (dict): by group (``'total'``, ``'category'``, ``'module'``, ``'phase'``) and name.
    """

    kind: str
    rank: int
    batch: int
    unit: str
    values: dict[str, dict[str, float]]
