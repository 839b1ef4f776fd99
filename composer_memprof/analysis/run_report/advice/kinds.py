"""A piece of advice, and the order of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from composer_memprof.analysis.run_report.trials import TriedChange


@dataclass(frozen=True)
class Advice:
    """One thing to change.

    Args:
        what (str): to do, as one sentence.
        why (str): the figures that say so, as sentences.
        frees (int, optional): about how many bytes less the peak has; None if it is not about memory or not known.
        reserved (bool): ``frees`` is reserved memory, not allocated.
        costs (str): what it costs; ``''`` if nothing is known to.
        setting (str): the value of PYTORCH_CUDA_ALLOC_CONF that it is about; ``''`` if it is about something else.
        replayed (bool): True if ``frees`` was found by a replay on torch's own allocator, not estimated.
        code (str): to paste into the training script, or a shell; ``''`` if there is none.
        change (str): the change that a plan can try, such as ``'shard'``; ``''`` if it is none.
        ends_cause (bool): True if it ends a failure, or a cause, that was found.
        tried (TriedChange, optional): that change on the simulated GPU, which then has ``frees``.
    """

    what: str
    why: str
    frees: Optional[int] = None
    reserved: bool = False
    costs: str = ''
    setting: str = ''
    replayed: bool = False
    code: str = ''
    change: str = ''
    ends_cause: bool = False
    tried: Optional[TriedChange] = None


def in_order(advice: Sequence[Advice]) -> list[Advice]:
    """Those that end a failure or a cause, as they are; then those that free most."""
    return sorted(advice, key=lambda each: (not each.ends_cause, 0 if each.ends_cause else -(each.frees or 0)))
