"""Batches per second and device utilization, from counted FLOPs and measured time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Optional

from composer_memprof.analysis.flops.gpt_formula import FormulaFlops, GPTShape, agree, formula_flops
from composer_memprof.analysis.flops.summary import DevicePeak, FlopsSummary, FormulaSummary, Rates, ShapeCount
from composer_memprof.recorders.flops.result import BatchFlops


@dataclass
class BatchShape:
    """What is known about batches of one shape.

    Args:
        shapes (Hashable): of the batch's tensors.
        tokens (tuple[int, int], optional): sequences, and tokens per sequence.
        model (GPTShape, optional): the model's sizes, for the formula.
        training (bool): True if batches have a backward pass.
        flops (BatchFlops, optional): set once a batch of this shape was traced.
        traced_at (int, optional): number of that batch.
        seen (int): batches of this shape so far.
        formula_fits_weights (bool): whether the formula is the model's as far as its weights tell, which decides while
            no batch of this shape was traced.
    """

    shapes: Hashable
    tokens: Optional[tuple[int, int]]
    model: Optional[GPTShape]
    training: bool
    flops: Optional[BatchFlops] = None
    traced_at: Optional[int] = None
    seen: int = 0
    formula_fits_weights: bool = False

    def __post_init__(self) -> None:
        self._formula: Optional[FormulaFlops] = None
        if self.model is not None and self.tokens is not None:
            self._formula = formula_flops(self.model, *self.tokens, training=self.training)

    @property
    def formula(self) -> Optional[FormulaFlops]:
        """None without ``tokens`` or ``model``, and where it is another model's: where it does not agree with the count."""
        found, counted = self._formula, self.flops
        fits = (
            self.formula_fits_weights
            if counted is None
            else found is not None and agree(found.batch_flops, counted.batch_flops)
        )
        return found if fits else None


@dataclass
class TimedBatches:
    """Sums over timed batches. A sum is None once it lacks the value of any batch."""

    batches: int = 0
    seconds: float = 0.0
    flops: Optional[int] = 0
    hardware_flops: Optional[int] = 0
    formula_flops: Optional[int] = 0

    def add(self, shape: BatchShape, seconds: float) -> None:
        flops, formula = shape.flops, shape.formula
        self.batches += 1
        self.seconds += seconds
        self.flops = _plus(self.flops, flops.batch_flops if flops is not None else None)
        self.hardware_flops = _plus(self.hardware_flops, flops.hardware_flops if flops is not None else None)
        self.formula_flops = _plus(self.formula_flops, formula.batch_flops if formula is not None else None)

    def rates(self, peak: Optional[float]) -> Rates:
        """The rates of these batches.

        Args:
            peak (float, optional): FLOPs per second of the device.
        """
        if not self.batches or not self.seconds:
            return Rates()
        available = None if peak is None else peak * self.seconds
        return Rates(
            actual_batches_per_sec=self.batches / self.seconds,
            max_batches_per_sec=peak * self.batches / self.flops if peak and self.flops else None,
            mfu=_share(self.flops, available),
            hfu=_share(self.hardware_flops, available),
            mfu_from_formula=_share(self.formula_flops, available),
        )


def _plus(total: Optional[int], value: Optional[int]) -> Optional[int]:
    return None if total is None or value is None else total + value


def _share(done: Optional[int], available: Optional[float]) -> Optional[float]:
    return None if done is None or not available else done / available


@dataclass
class WindowFlops:
    """Collects the batches of one window."""

    all_timed: TimedBatches = field(default_factory=TimedBatches)
    timed_since_log: TimedBatches = field(default_factory=TimedBatches)
    batches: int = 0
    traced: int = 0
    _shapes: dict[int, tuple[BatchShape, int]] = field(default_factory=dict)

    def add(self, shape: Optional[BatchShape], seconds: Optional[float], *, traced: bool) -> None:
        """Add a batch that has ended.

        Args:
            shape (BatchShape, optional): None if its shape is not tracked, because there are too many shapes.
            seconds (float, optional): None if it was not timed.
            traced (bool): True if its operations were counted, which slows it down, so its time does not count.
        """
        self.batches += 1
        self.traced += traced
        if shape is None:
            return
        self._shapes[id(shape)] = shape, self._shapes.get(id(shape), (shape, 0))[1] + 1
        if seconds is not None and not traced:
            self.all_timed.add(shape, seconds)
            self.timed_since_log.add(shape, seconds)

    def metrics(self, shape: BatchShape, peak: Optional[float]) -> dict[str, float]:
        """The values to log: rates since the last call, and the FLOPs of a batch of ``shape``."""
        rates, self.timed_since_log = self.timed_since_log.rates(peak).as_dict(), TimedBatches()
        del rates['hfu']
        values: dict[str, Optional[float]] = {**rates, 'peak_flops_per_sec': peak, 'total_flops': peak}
        if shape.flops is not None:
            values['batch_flops'] = shape.flops.batch_flops
            values['tracked_operations'] = shape.flops.tracked_calls
            values['untracked_operations'] = shape.flops.untracked_calls
        if shape.formula is not None:
            values['batch_flops_from_formula'] = shape.formula.batch_flops
        return {name: value for name, value in values.items() if value is not None}

    def summary(self, peak: DevicePeak) -> FlopsSummary:
        """The whole window; FLOPs and formula are those of its most frequent shape."""
        shapes = sorted(self._shapes.values(), key=lambda each: -each[1])
        rates = self.all_timed.rates(peak.flops)
        return FlopsSummary(
            peak=peak,
            batches=self.batches,
            traced=self.traced,
            timed=self.all_timed.batches,
            shapes=tuple(_count(shape, batches) for shape, batches in shapes),
            seconds=self.all_timed.seconds,
            rates=rates,
            formula=_formula(shapes[0][0], rates.mfu_from_formula) if shapes else None,
            flops=next((shape.flops for shape, _ in shapes if shape.flops is not None), None),
        )


def _count(shape: BatchShape, batches: int) -> ShapeCount:
    batch_flops = shape.flops.batch_flops if shape.flops is not None else None
    return ShapeCount(shape.shapes, batches, batch_flops, shape.traced_at)


def _formula(shape: BatchShape, mfu: Optional[float]) -> Optional[FormulaSummary]:
    if shape.formula is None or shape.model is None or shape.tokens is None:
        return None
    sequences, length = shape.tokens
    return FormulaSummary(shape.formula, mfu, sequences, length, shape.model)
