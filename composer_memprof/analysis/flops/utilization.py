"""From counted FLOPs and measured time: batches a second, and how much of a device was put to use."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from composer_memprof.analysis.flops.gpt_formula import SOURCE, FormulaFlops, GPTShape, formula_flops
from composer_memprof.recorders.flops.result import BatchFlops

RATES = ('actual_batches_per_sec', 'max_batches_per_sec', 'mfu', 'hfu', 'mfu_from_formula')


@dataclass(frozen=True)
class Peak:
    """FLOPs a second of one device, and where the figure comes from. ``flops`` None: unknown."""

    device: str
    flops: Optional[float]
    source: str


@dataclass
class BatchShape:
    """Batches of one shape: ``flops`` once one of them was traced, ``formula`` where there is one.

    Args:
        shapes (Hashable): of the tensors.
        tokens (tuple[int, int], optional): sequences, and their length.
        model (GPTShape, optional): what the formula is of.
        training (bool): with a backward pass.
    """

    shapes: Hashable
    tokens: Optional[tuple[int, int]]
    model: Optional[GPTShape]
    training: bool
    flops: Optional[BatchFlops] = None
    traced_at: Optional[int] = None
    #: How many there have been.
    seen: int = 0

    def __post_init__(self) -> None:
        self.formula: Optional[FormulaFlops] = None
        if self.model is not None and self.tokens is not None:
            self.formula = formula_flops(self.model, *self.tokens, training=self.training)


@dataclass
class Tally:
    """Timed batches, added up. A sum is None once a batch has had none of its kind."""

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

    def rates(self, peak: Optional[float]) -> dict[str, Optional[float]]:
        """``RATES`` of these batches, None where they can't be told.

        Args:
            peak (float, optional): FLOPs a second of the device.
        """
        if not self.batches or not self.seconds:
            return dict.fromkeys(RATES)
        available = None if peak is None else peak * self.seconds
        values = (
            self.batches / self.seconds,
            peak * self.batches / self.flops if peak and self.flops else None,
            *(_share(each, available) for each in (self.flops, self.hardware_flops, self.formula_flops)),
        )
        return dict(zip(RATES, values))


def _plus(sum_so_far: Optional[int], value: Optional[int]) -> Optional[int]:
    return None if sum_so_far is None or value is None else sum_so_far + value


def _share(done: Optional[int], available: Optional[float]) -> Optional[float]:
    return None if done is None or not available else done / available


@dataclass
class Window:
    """The batches of a window, as they come."""

    whole: Tally = field(default_factory=Tally)
    since_log: Tally = field(default_factory=Tally)
    batches: int = 0
    traced: int = 0
    _shapes: dict[int, tuple[BatchShape, int]] = field(default_factory=dict)

    def add(self, shape: Optional[BatchShape], seconds: Optional[float], *, traced: bool) -> None:
        """A batch has ended; ``seconds`` None: it was not timed, ``shape`` None: there were too many shapes before."""
        self.batches += 1
        self.traced += traced
        if shape is None:
            return
        self._shapes[id(shape)] = shape, self._shapes.get(id(shape), (shape, 0))[1] + 1
        if seconds is not None and not traced:
            self.whole.add(shape, seconds)
            self.since_log.add(shape, seconds)

    def metrics(self, shape: BatchShape, peak: Optional[float]) -> dict[str, float]:
        """What is known of a batch of ``shape``, and of the time since this was last asked for."""
        rates, self.since_log = self.since_log.rates(peak), Tally()
        values: dict[str, Optional[float]] = {
            **{name: value for name, value in rates.items() if name != 'hfu'},
            'total_flops': peak,
        }
        if shape.flops is not None:
            values['batch_flops'] = shape.flops.batch_flops
            values['tracked_operations'] = shape.flops.tracked_calls
            values['untracked_operations'] = shape.flops.untracked_calls
        if shape.formula is not None:
            values['batch_flops_from_formula'] = shape.formula.batch_flops
        return {name: value for name, value in values.items() if value is not None}

    def as_dict(self, peak: Peak) -> dict[str, Any]:
        """The window, with the shape of batches that came most often in full."""
        shapes = sorted(self._shapes.values(), key=lambda each: -each[1])
        flops = next((shape.flops for shape, _ in shapes if shape.flops is not None), None)
        rates = self.whole.rates(peak.flops)
        mfu_from_formula = rates.pop('mfu_from_formula')
        return {
            'device': {'name': peak.device, 'peak_flops': peak.flops, 'peak_source': peak.source},
            'batches': {
                'all': self.batches,
                'traced': self.traced,
                'timed': self.whole.batches,
                'shapes': [
                    {
                        'shapes': shape.shapes,
                        'batches': batches,
                        'batch_flops': shape.flops.batch_flops if shape.flops is not None else None,
                        'traced_at': shape.traced_at,
                    }
                    for shape, batches in shapes
                ],
            },
            'seconds': self.whole.seconds,
            **rates,
            'formula': _formula(shapes[0][0], mfu_from_formula) if shapes else None,
            **(flops.as_dict() if flops is not None else dict.fromkeys(BatchFlops.__dataclass_fields__)),
        }


def _formula(shape: BatchShape, mfu: Optional[float]) -> Optional[dict[str, Any]]:
    if shape.formula is None or shape.model is None or shape.tokens is None:
        return None
    return {
        **asdict(shape.formula),
        'mfu': mfu,
        'source': SOURCE,
        'sequences': shape.tokens[0],
        'length': shape.tokens[1],
        'model': shape.model.as_dict(),
    }
