"""How much longer or shorter kernels take on a real GPU than on the simulated one: a factor for each class of them."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any

from composer_memprof.simulated_gpu.clocks import Kind

_VARIABLE = 'SIMULATED_GPU_FACTORS'
_LEAST, _MOST = 0.01, 100.0


@dataclasses.dataclass(frozen=True)
class Factors:
    """The durations of the simulated GPU are multiplied by these.

    Attributes:
        matrix_products: and convolutions.
        attention: fused kernels.
        other_operators: also those of the optimizer.
        collectives: of groups of ranks.
        copies: between host and device.
        host: the host's time for a launch.

    >>> Factors(attention=1.5).of(Kind.ATTENTION), Factors(attention=1.5).of(Kind.OPTIMIZER)
    (1.5, 1.0)
    """

    matrix_products: float = 1.0
    attention: float = 1.0
    other_operators: float = 1.0
    collectives: float = 1.0
    copies: float = 1.0
    host: float = 1.0

    def of(self, kind: Kind) -> float:
        """The factor of kernels of a kind."""
        return {Kind.PRODUCTS: self.matrix_products, Kind.ATTENTION: self.attention}.get(kind, self.other_operators)

    def as_environment(self) -> dict[str, str]:
        """The variable that tells them to a simulated process."""
        return {_VARIABLE: json.dumps(dataclasses.asdict(self))}


def factors_of_this_process() -> Factors:
    """As the command has told them; 1 for all of them otherwise.

    >>> factors_of_this_process().host
    1.0
    """
    return _parsed(os.environ.get(_VARIABLE, '{}'))


@functools.cache
def _parsed(text: str) -> Factors:
    return Factors(**json.loads(text))


def read_factors(path: Path) -> Factors:
    """The factors in a file that ``--calibrate`` has written, or that was written by hand.

    Raises:
        ValueError: for another file, in one line.
    """
    try:
        values: Any = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise ValueError(f'--calibrate={str(path)!r} cannot be read: {error}') from None
    names = [field.name for field in dataclasses.fields(Factors)]
    if not isinstance(values, dict) or not isinstance(values.get('factors'), dict):
        raise ValueError(f'--calibrate={str(path)!r} must hold {{"factors": {{…}}}} of {", ".join(names)}')
    for name, value in values['factors'].items():
        if name not in names:
            raise ValueError(f'--calibrate={str(path)!r}: {name!r} is no class of kernels; allowed: {", ".join(names)}')
        if not isinstance(value, (int, float)) or not _LEAST <= value <= _MOST:
            raise ValueError(f'--calibrate={str(path)!r}: {name} must be {_LEAST:g} to {_MOST:g}, not {value!r}')
    return Factors(**values['factors'])
