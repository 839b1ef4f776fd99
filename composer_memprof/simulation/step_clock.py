"""Within the simulated process: how long one step would take on the device, operator by operator."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from composer_memprof.messages import log_error
from composer_memprof.recorders.batch_shape import token_shape
from composer_memprof.recorders.dispatch import in_backward
from composer_memprof.recorders.flops.formulas import count
from composer_memprof.recorders.tensors import tensors_in
from composer_memprof.recorders.torch_private.compilation import compilations
from composer_memprof.simulated_gpu import clocks
from composer_memprof.simulated_gpu.calibration import factors_of_this_process
from composer_memprof.simulated_gpu.clocks import Kind
from composer_memprof.simulated_gpu.durations.operators import Durations
from composer_memprof.simulated_gpu.durations.signatures import signature
from composer_memprof.simulated_gpu.launches import launching, triton_kernels
from composer_memprof.simulated_gpu.ranks import simulated_ranks
from composer_memprof.simulated_gpu.rates import Rates, UnknownRateError, rates_of
from composer_memprof.simulated_gpu.this_process import figures, simulated_device
from composer_memprof.simulation.step_time import StepTime
from composer_memprof.simulation.trace.recorder import StepTrace, TraceRecorder

_OUTSIDE = "kernels launched outside of torch's operators"
_NAMES = {
    Kind.PRODUCTS: 'matrix_products',
    Kind.ATTENTION: 'attention',
    Kind.OTHER_KERNELS: 'other_operators',
    Kind.OPTIMIZER: 'optimizer',
    Kind.COPIES: 'copies',
    Kind.COLLECTIVES: 'collectives',
    Kind.WAITING_FOR_STREAMS: 'waiting_for_other_streams',
    Kind.WAITING_FOR_HOST: 'waiting_for_host',
}


@dataclasses.dataclass(frozen=True)
class _Call:
    """What is known of an operator's call.

    Attributes:
        seconds: of its kernels.
        unknown: what its duration is not known of; ``''`` if it is known.
        flops: of a product or attention.
        dtype: of its first tensor, as ``bfloat16``.
    """

    seconds: float
    kind: Kind
    unknown: str
    flops: int
    dtype: str


class StepClock:
    """Lets the clocks run for a step, and tells them how long each operator takes.

    Attributes:
        optimizes: whether the optimizer steps.
        trace: of the step, once it has ended and if it was recorded.

    Args:
        rates: how fast the device is. Default: those of the simulated one.
        recorder: of a trace.

    Raises:
        UnknownRateError: if nothing is known of the device's speed.
    """

    def __init__(self, rates: Optional[Rates] = None, recorder: Optional[TraceRecorder] = None) -> None:
        here = figures()
        self._rates = rates or rates_of(simulated_device() or '')
        self._durations = Durations(
            self._rates, int(here['multiprocessors']), int(here['major']), int(here['l2_cache'])
        )
        self._flops: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()
        self._recomputing = 0
        self._samples = self._tokens = 0
        self._failure: Optional[Exception] = None
        self._optimizes = False
        self._recorder = recorder
        self._factors = factors_of_this_process()
        self._launches, self._operator_took, self._kernel_took = clocks.of_operators()
        self._undo: list[Callable[[], None]] = []
        self.trace: Optional[StepTrace] = None

    @property
    def optimizes(self) -> bool:
        return self._optimizes

    @optimizes.setter
    def optimizes(self, now: bool) -> None:
        if self._recorder is not None and now != self._optimizes:
            if now:
                self._recorder.began('optimizer')
            else:
                self._recorder.ended()
        self._optimizes = now

    def start(self) -> None:
        """The step begins."""
        clocks.start(self._rates, self._factors.host, self._factors.copies)
        if self._recorder is not None:
            self._recorder.start()
        self._watch()

    def see_batch(self, batch: Any) -> None:
        """Count the samples of a batch or a microbatch that the step goes through."""
        self._samples += max((len(tensor) for tensor in tensors_in(batch) if tensor.dim()), default=0)
        sequences, length = token_shape(batch) or (0, 0)
        self._tokens += sequences * length

    def stop(self) -> Optional[StepTime]:
        """The step ends. None if it could not be followed."""
        for undo in self._undo:
            undo()
        stream = torch.cuda.current_stream().cuda_stream
        seconds, (launches, unknown), spent = clocks.elapsed(), clocks.counts(), clocks.spent(stream)
        if self._recorder is not None:
            self.trace = self._recorder.stop(seconds)
        clocks.stop()
        if self._failure is not None:
            log_error('the time of a step is not known', self._failure)
            return None
        if unknown:
            self._unknown[_OUTSIDE] += unknown
        spent[Kind.WAITING_FOR_HOST] += max(0.0, seconds - sum(spent.values()))
        shares = {_NAMES[kind]: spent[kind] / seconds for kind in _NAMES} if seconds else {}
        if (simulated_ranks() or 1) > 1 and shares:
            shares['waiting_for_other_ranks'] = shares.pop('waiting_for_other_streams')
        return StepTime(
            step_seconds=seconds,
            tokens_per_second_per_gpu=self._tokens / seconds if self._tokens and seconds else None,
            samples_per_second_per_gpu=self._samples / seconds if self._samples and seconds else None,
            mfu=self._mfu(seconds),
            shares=shares,
            launches=launches,
            unknown=dict(self._unknown.most_common()),
        )

    def _mfu(self, seconds: float) -> Optional[float]:
        if not self._flops or not seconds:
            return None
        dtype, _ = self._flops.most_common(1)[0]
        peak = self._rates.peak(dtype, tf32=torch.backends.cuda.matmul.allow_tf32)
        return sum(self._flops.values()) / (seconds * peak)

    def _watch(self) -> None:
        """Global hooks leave the model's own hooks and their order as they are; what is compiled would be so anew."""
        self._undo = [launching.watch(self._see_of), triton_kernels.watch(self._triton_launched)]
        if not compilations():
            entered = register_module_forward_pre_hook(lambda module, _: self._entered(module))
            left = register_module_forward_hook(lambda module, *_: self._left(), always_call=True)
            self._undo += [entered.remove, left.remove]

    def _triton_launched(self, launch: triton_kernels.Launch) -> None:
        """A kernel takes at least as long as its bytes."""
        launches = self._launches()
        if launches and launch.computes_more:
            self._unknown[launch.name] += launches
        seconds, kind = self._durations.moved(launch.bytes)
        kind = Kind.OPTIMIZER if self._optimizes else kind
        number = 0 if self._recorder is None else self._recorder.number_of(launch.name)
        self._kernel_took(seconds * self._factors.of(kind), kind, number)

    def _see_of(self, operation: Any) -> launching.See:
        """What is called after each call of an operator. The script never sees an error of its duration."""
        calls: dict[Any, _Call] = {}
        # the shapes of its results do not follow from those of its arguments
        is_dynamic = torch.Tag.dynamic_output_shape in operation.tags
        name = operation.name().removesuffix('.default')
        number = 0 if self._recorder is None else self._recorder.number_of(name)
        launches_of_thread, took = self._launches, self._operator_took

        def see(arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
            launches = launches_of_thread()
            if not launches:
                return
            key: Any = signature(arguments)
            if keywords or is_dynamic:
                key = key, signature(keywords.items()), signature((result,)) if is_dynamic else None
            try:
                call = calls.get(key)
            except TypeError:  # one of the arguments has no hash
                call = self._new_call(operation, arguments, keywords, result)
            if call is None:
                call = calls[key] = self._new_call(operation, arguments, keywords, result)
            if call.unknown:
                self._unknown[call.unknown] += launches
            if call.flops and not self._recomputing:
                self._flops[call.dtype] += call.flops
            optimizes = self._optimizes and call.kind is Kind.OTHER_KERNELS
            took(call.seconds, Kind.OPTIMIZER if optimizes else call.kind, number)

        def see_or_fail(arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
            try:
                see(arguments, keywords, result)
            except Exception as error:
                self._failure = error

        return see_or_fail

    def _new_call(self, operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> _Call:
        unknown = ''
        try:
            seconds, kind = self._durations.of(operation, arguments, keywords, result)
        except UnknownRateError as error:
            unknown = f'{operation.name()} in {error}'
            seconds, kind = 0.0, Kind.OTHER_KERNELS
        if self._durations.is_lower_bound(operation):
            unknown = operation.name().removesuffix('.default')
        found = count(operation, arguments, keywords, result) if kind in (Kind.PRODUCTS, Kind.ATTENTION) else None
        tensor = next(tensors_in(arguments), None)
        dtype = '' if tensor is None else str(tensor.dtype).removeprefix('torch.')
        return _Call(seconds * self._factors.of(kind), kind, unknown, 0 if found is None else found.flops, dtype)

    def _entered(self, module: torch.nn.Module) -> None:
        """A module that runs in backward is one whose activations were not kept."""
        if self._recorder is not None:
            self._recorder.entered(module)
        if self._recomputing or in_backward():
            self._recomputing += 1

    def _left(self) -> None:
        if self._recorder is not None:
            self._recorder.ended()
        self._recomputing = max(0, self._recomputing - 1)


def new_clock(recorder: Optional[TraceRecorder] = None) -> Optional[StepClock]:
    """None if nothing is known of the device."""
    try:
        return StepClock(recorder=recorder)
    except UnknownRateError:
        return None
