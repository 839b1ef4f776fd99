"""How long a training step would take on the simulated device, and what it is spent on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Optional

#: How shares are called, in the order in which they are shown.
_LABELS = {
    'matrix_products': 'matrix products',
    'attention': 'attention',
    'other_operators': 'other operators',
    'optimizer': 'the optimizer',
    'copies': 'copies',
    'collectives': 'collectives',
    'waiting_for_other_ranks': 'waiting for other ranks',
    'waiting_for_other_streams': 'waiting for other streams',
    'waiting_for_host': 'waiting for the host',
}
_SMALLEST_SHARE = 0.005
#: Nine of ten published trainings on these devices are as close, in per cent (`make accuracy`, `ARGS='time FILE.csv'`).
_MEASURED_ON = {'a100-40gb': 8, 'a100-80gb': 6}


@dataclasses.dataclass(frozen=True)
class StepTime:
    """One step of one rank.

    Attributes:
        step_seconds: from the end of a step to the end of the next one.
        tokens_per_second_per_gpu: None where no batch of tokens was seen.
        samples_per_second_per_gpu: None where no batch was seen.
        mfu: the model's FLOPs, each counted once and causal attention in full, against the device's peak in the data type
            of most of them, from 0 to 1; None without any.
        shares: of the step, by what the stream of the model's kernels does.
        launches: kernels.
        unknown: launches whose duration is not known, by what they are. They are taken to be the shortest.
    """

    step_seconds: float
    tokens_per_second_per_gpu: Optional[float]
    samples_per_second_per_gpu: Optional[float]
    mfu: Optional[float]
    shares: dict[str, float]
    launches: int
    unknown: dict[str, int]

    @property
    def seconds_per_sample(self) -> float:
        """Of a step where no batch was seen."""
        return 1 / self.samples_per_second_per_gpu if self.samples_per_second_per_gpu else self.step_seconds


def time_in_words(time: StepTime, gpu: str) -> Iterator[str]:
    """A line for how fast, one for what the time is spent on, and one for what is not known."""
    rates = []
    if time.tokens_per_second_per_gpu:
        rates.append(f'{time.tokens_per_second_per_gpu:,.0f} tokens/s on each GPU')
    elif time.samples_per_second_per_gpu:
        rates.append(f'{time.samples_per_second_per_gpu:,.1f} samples/s on each GPU')
    if time.mfu:
        rates.append(f'{time.mfu:.0%} MFU')
    yield ', '.join([f'a step takes {seconds_in_words(time.step_seconds)}', *rates, _error_bar(gpu)])
    shares = [f'{share:.0%} {_LABELS[name]}' for name, share in time.shares.items() if share >= _SMALLEST_SHARE]
    yield f'its time: {", ".join(shares)}'
    if time.unknown:
        names = ', '.join(f'{name} ({count / max(1, time.launches):.1%})' for name, count in time.unknown.items())
        yield f'kernels of unknown duration, taken to be the shortest, with their share of launches: {names}'


def seconds_in_words(seconds: float) -> str:
    """
    >>> seconds_in_words(1.234), seconds_in_words(0.0821)
    ('1.23 s', '82.1 ms')
    """
    return f'{seconds:.2f} s' if seconds >= 1 else f'{1000 * seconds:.1f} ms'


def _error_bar(gpu: str) -> str:
    """How close it is, as the table of accuracy says."""
    if gpu in _MEASURED_ON:
        return f'within about {_MEASURED_ON[gpu]} % for GPTs on A100'
    return 'never compared with a real one of this kind'


def difference(time: Optional[StepTime], base: Optional[StepTime]) -> str:
    """How much longer a sample takes, as ``+19 %``; ``''`` where either is not known.

    >>> one = StepTime(1.0, None, 4.0, None, {}, 9, {})
    >>> difference(StepTime(1.0, None, 2.0, None, {}, 9, {}), one), difference(one, one)
    ('+100%', '+0%')
    """
    if time is None or base is None:
        return ''
    change = time.seconds_per_sample / base.seconds_per_sample - 1
    return f'{change:+.0%}' if abs(change) >= _SMALLEST_SHARE else '+0%'
