"""The FLOPs of one window as plain data: what ``Flops`` writes to JSON and prints as a table."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any, Optional

from composer_memprof.analysis.flops.gpt_formula import SOURCE, FormulaFlops, GPTShape
from composer_memprof.recorders.flops.recorder import BatchFlops


@dataclass(frozen=True)
class DevicePeak:
    """The most FLOPs per second that one device can do. ``flops`` is None if unknown; ``source`` says who gave it."""

    device: str
    flops: Optional[float]
    source: str


@dataclass(frozen=True)
class Rates:
    """Rates of timed batches. A rate that cannot be computed is None.

    Args:
        actual_batches_per_sec (float): measured.
        max_batches_per_sec (float): at the device peak.
        mfu (float): model FLOPs per second / device peak.
        hfu (float): hardware FLOPs per second / device peak.
        mfu_from_formula (float): as ``mfu``, with model FLOPs from the formula.
    """

    actual_batches_per_sec: Optional[float] = None
    max_batches_per_sec: Optional[float] = None
    mfu: Optional[float] = None
    hfu: Optional[float] = None
    mfu_from_formula: Optional[float] = None

    def as_dict(self) -> dict[str, Optional[float]]:
        return asdict(self)


@dataclass(frozen=True)
class ShapeCount:
    """How many batches of one shape the window had.

    Args:
        shapes (Hashable): of the batch's tensors.
        batches (int): how many.
        batch_flops (int, optional): model FLOPs of one such batch. None: none was traced.
        traced_at (int, optional): number of the traced batch.
    """

    shapes: Hashable
    batches: int
    batch_flops: Optional[int]
    traced_at: Optional[int]


@dataclass(frozen=True)
class FormulaSummary:
    """The formula's FLOPs of a batch of ``sequences`` sequences of ``length`` tokens."""

    flops: FormulaFlops
    mfu: Optional[float]
    sequences: int
    length: int
    model: GPTShape
    source: str = SOURCE

    def as_dict(self) -> dict[str, Any]:
        """As written to JSON."""
        return {
            **asdict(self.flops),
            'mfu': self.mfu,
            'source': self.source,
            'sequences': self.sequences,
            'length': self.length,
            'model': self.model.as_dict(),
        }


@dataclass(frozen=True)
class FlopsSummary:
    """The FLOPs of one window.

    Args:
        peak (DevicePeak): of the device that the model is on.
        batches (int): in the window.
        traced (int): batches whose operations were counted.
        timed (int): batches whose time is in ``seconds`` and ``rates``.
        shapes (tuple[ShapeCount]): the most frequent first.
        seconds (float): of all timed batches.
        rates (Rates): of all timed batches.
        formula (FormulaSummary, optional): for the most frequent shape. None: no formula for this model or batch.
        flops (BatchFlops, optional): counts of the most frequent traced shape. None: no batch was traced.
    """

    peak: DevicePeak
    batches: int
    traced: int
    timed: int
    shapes: tuple[ShapeCount, ...]
    seconds: float
    rates: Rates
    formula: Optional[FormulaSummary]
    flops: Optional[BatchFlops]

    def as_dict(self) -> dict[str, Any]:
        """As written to JSON."""
        rates = self.rates.as_dict()
        del rates['mfu_from_formula']  # it is part of 'formula'
        return {
            'device': {'name': self.peak.device, 'peak_flops': self.peak.flops, 'peak_source': self.peak.source},
            'batches': {
                'all': self.batches,
                'traced': self.traced,
                'timed': self.timed,
                'shapes': [vars(shape) for shape in self.shapes],
            },
            'seconds': self.seconds,
            **rates,
            'formula': self.formula.as_dict() if self.formula is not None else None,
            **(self.flops.as_dict() if self.flops is not None else dict.fromkeys(BatchFlops.__dataclass_fields__)),
        }
