"""What a run and its changes came to on the simulated GPU, where somebody asked for that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional


@dataclass(frozen=True)
class TriedChange:
    """A change, or several together, on the simulated GPU. Sizes are in bytes.

    Args:
        name (str): what is done, in a few words.
        how (str): what to write where.
        costs (str): what it costs beside memory, in words.
        before (int): the peak of allocated memory without it.
        after (int): the peak with it.
        fits (bool): True if it fits on the device.
        error (str): why it does not run; ``''`` if it does.
        slower (float, optional): how much longer a sample takes with it, as a part of what it takes without: 0.19 for
            19 % longer, below 0 for shorter. None if it is not known.
    """

    name: str
    how: str
    costs: str
    before: int
    after: int
    fits: bool
    error: str
    slower: Optional[float] = None


@dataclass(frozen=True)
class Trials:
    """A run on the simulated GPU.

    Args:
        gpu (str): the device, such as ``'h100-80gb'``.
        ranks (int): how many processes the simulated one stood among.
        peak (int): bytes allocated at most.
        reserved (int): bytes that it took of the device.
        available (int): bytes of the device that torch's allocator can have.
        fits (bool): True if the run as it is fits.
        changes (list[TriedChange]): those that were tried.
        together (TriedChange, optional): where no change fits alone, those that fit together, or come closest.
        step_seconds (float, optional): of a step of the run as it is; None if it is not known.
        speed (list[str]): how long that step takes and for what, in words.
    """

    gpu: str
    ranks: int
    peak: int
    reserved: int
    available: int
    fits: bool
    changes: list[TriedChange]
    together: Optional[TriedChange]
    step_seconds: Optional[float] = None
    speed: list[str] = field(default_factory=list)
