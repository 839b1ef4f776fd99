"""What a run and its changes came to on the simulated GPU, where somebody asked for that."""

from __future__ import annotations

from dataclasses import dataclass
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
    """

    name: str
    how: str
    costs: str
    before: int
    after: int
    fits: bool
    error: str


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
    """

    gpu: str
    ranks: int
    peak: int
    reserved: int
    available: int
    fits: bool
    changes: list[TriedChange]
    together: Optional[TriedChange]
