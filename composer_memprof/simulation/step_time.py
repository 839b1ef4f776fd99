"""How long a training step would take on the simulated device, and what it is spent on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Optional

#: How shares are called, in the order in which they are shown.
LABELS = {
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
#: What was compared with real steps on each device, in words (`make accuracy`, with `ARGS='time FILE.csv'` and `ARGS=devices`).
_COMPARED = {
    'a100-40gb': 'within about 8 % for GPTs on A100, 18 % for ResNet and compiled GPTs',
    'a100-80gb': 'within about 6 % for GPTs on A100, 18 % for ResNet and compiled GPTs',
    'h100-80gb': 'within about 16 % for three compiled GPTs on H100, nothing else was compared',
    'v100-16gb': 'within about 22 % for BERT and ResNet on V100',
    'v100-32gb': 'within about 22 % for BERT and ResNet on V100',
    't4': 'within about 10 % for a large ResNet forward on T4, no training was compared',
    'rtx-3090': 'within about 25 % for ResNet and ViT on RTX 3090',
    'rtx-4090': 'within about 25 % for a compiled GPT, ResNet and ViT on RTX 4090',
}


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
        unknown: launches whose duration is not known, by what they are. They are taken to be as short as their bytes
            allow, or as the shortest kernel if these are not known either.
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


def extended(shorter: StepTime, longer: StepTime, more: float) -> StepTime:
    """The time of a step that goes on as the longer one does after the end of the shorter one, ``more`` times.

    Args:
        shorter: of a step with some microbatches.
        longer: of a step with one microbatch more.
        more: microbatches beyond those of ``longer``; the last one may be a part of one.

    >>> two, three = (StepTime(n + 1.0, None, 4 * n / (n + 1.0), None, {'copies': 0.5}, 10 * n, {}) for n in (2, 3))
    >>> five = extended(two, three, 2)
    >>> five.step_seconds, round(five.samples_per_second_per_gpu * five.step_seconds), five.launches
    (6.0, 20, 50)
    """

    def carried_on(before: float, after: float) -> float:
        return after + more * (after - before)

    seconds = carried_on(shorter.step_seconds, longer.step_seconds)

    def rate(before: Optional[float], after: Optional[float]) -> Optional[float]:
        if not before or not after or not seconds:
            return None
        return carried_on(before * shorter.step_seconds, after * longer.step_seconds) / seconds

    def count(before: float, after: float) -> int:
        return round(carried_on(before, after))

    return StepTime(
        step_seconds=seconds,
        tokens_per_second_per_gpu=rate(shorter.tokens_per_second_per_gpu, longer.tokens_per_second_per_gpu),
        samples_per_second_per_gpu=rate(shorter.samples_per_second_per_gpu, longer.samples_per_second_per_gpu),
        mfu=rate(shorter.mfu, longer.mfu),
        shares={name: rate(shorter.shares.get(name), share) or 0.0 for name, share in longer.shares.items()},
        launches=count(shorter.launches, longer.launches),
        unknown={name: count(shorter.unknown.get(name, 0), number) for name, number in longer.unknown.items()},
    )


def time_in_words(time: StepTime, gpu: str) -> Iterator[str]:
    """A line for how fast, one for what the time is spent on, and one for what is not known."""
    rates = []
    if time.tokens_per_second_per_gpu or time.samples_per_second_per_gpu:
        rates.append(f'{speed_in_words(time)} on each GPU')
    if time.mfu:
        rates.append(f'{time.mfu:.0%} MFU')
    yield ', '.join([f'a step takes {seconds_in_words(time.step_seconds)}', *rates, _error_bar(gpu)])
    shares = [f'{share:.0%} {LABELS[name]}' for name, share in time.shares.items() if share >= _SMALLEST_SHARE]
    yield f'its time: {", ".join(shares)}'
    if time.unknown:
        names = ', '.join(f'{name} ({count / max(1, time.launches):.1%})' for name, count in time.unknown.items())
        yield f'kernels of unknown duration, taken to be as short as their bytes allow, with their share of launches: {names}'


def speed_in_words(time: StepTime) -> str:
    """Tokens a second, or samples where no tokens are known, or steps.

    >>> speed_in_words(StepTime(0.5, 4096.0, 2.0, None, {}, 9, {})), speed_in_words(StepTime(0.5, None, None, None, {}, 9, {}))
    ('4,096 tokens/s', '2.0 steps/s')
    """
    if time.tokens_per_second_per_gpu:
        return f'{time.tokens_per_second_per_gpu:,.0f} tokens/s'
    if time.samples_per_second_per_gpu:
        return f'{time.samples_per_second_per_gpu:,.1f} samples/s'
    return f'{1 / time.step_seconds:,.1f} steps/s'


def seconds_in_words(seconds: float) -> str:
    """
    >>> seconds_in_words(1.234), seconds_in_words(0.0821)
    ('1.23 s', '82.1 ms')
    """
    return f'{seconds:.2f} s' if seconds >= 1 else f'{1000 * seconds:.1f} ms'


def _error_bar(gpu: str) -> str:
    """How close it is, as the tables of accuracy say.

    >>> _error_bar('a100-40gb')[:36], _error_bar('l4')
    ('within about 8 % for GPTs on A100, 1', 'never compared with a real one of this kind, may be off by a third')
    """
    return _COMPARED.get(gpu, 'never compared with a real one of this kind, may be off by a third')


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
