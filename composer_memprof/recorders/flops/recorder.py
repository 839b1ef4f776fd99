"""Count the floating-point operations of a batch as it runs: by phase, module and operation.

with FlopsRecorder(model) as recorder:
    loss_of(model(batch)).backward()
print(recorder.result.batch_flops)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import nn

from composer_memprof.recorders import dispatch
from composer_memprof.recorders.flops.formulas import computes, count, name_of
from composer_memprof.recorders.flops.result import BatchFlops, ModuleFlops, OperationFlops, UntrackedOperation
from composer_memprof.recorders.modules.names import OUTSIDE as OUTSIDE_NAME
from composer_memprof.recorders.modules.names import class_name, named_modules
from composer_memprof.recorders.modules.running_module import OUTSIDE, RunningModule
from composer_memprof.recorders.torch_private import flop_formulas
from composer_memprof.recorders.with_block import WithBlock

#: The modules of ``torch_private`` that this needs.
NEEDS = (*dispatch.NEEDS, flop_formulas)

FORWARD, BACKWARD, RECOMPUTED, OPTIMIZER = range(4)


class FlopsRecorder(WithBlock):
    """Counts the FLOPs of ``model`` and of what runs around it; usable without a Trainer.

    Each operator is counted from the shapes of its arguments while it runs, so nothing runs twice and no number
    changes. Of a DTensor, this process's share is counted. In compiled code only calls of torch's operators are
    counted, and they are not assigned to modules.

    >>> model = torch.nn.Linear(4, 2)
    >>> with FlopsRecorder(model) as recorder:
    ...     model(torch.ones(3, 4)).sum().backward()
    >>> recorder.result.forward_flops
    48

    Args:
        model (Module): the modules to report.
    """

    no_result = 'no FLOPs were counted'

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.result: Optional[BatchFlops] = None
        #: The error that ended counting early, raised while an operation of the training ran.
        self.error: Optional[Exception] = None
        self._is_recording = False
        self.restart()

    @property
    def is_recording(self) -> bool:
        return self._is_recording

    def start(self) -> None:
        """Begin to count.

        Raises:
            RuntimeError: if this recorder counts already.
        """
        if self._is_recording:
            raise RuntimeError('this recorder is already active')
        self._is_recording = True
        dispatch.listen(self)

    def stop(self) -> BatchFlops:
        """End, and leave torch and the model as they were before.

        Raises:
            RuntimeError: if counting failed.
        """
        self.cancel()
        if self.error is not None:
            raise RuntimeError(f'counting ended early: {self.error}') from self.error
        self.result = self._summary()
        return self.result

    def cancel(self) -> None:
        """End without a result."""
        self._is_recording = False
        dispatch.stop_listening(self)

    def restart(self) -> None:
        """Forget what was counted, because the batch runs again from its beginning."""
        self._modules = list(named_modules(self.model, with_wrappers=True))
        self._running = RunningModule([module for _, module in self._modules])
        self._flops: dict[tuple[int, str, int], int] = defaultdict(int)
        self._tracked: Counter[str] = Counter()
        self._untracked: Counter[str] = Counter()
        self._module_calls: Counter[int] = Counter()
        self._optimizing = False

    def begin_optimizer(self) -> None:
        """Forward and backward ended, even if the optimizer's ``step`` was called long before."""
        self._optimizing = True

    def begin_batch(self) -> None:
        """Forward and backward begin, for the first time or again within one step of the optimizer."""
        self._optimizing = False

    # -- OperationListener --------------------------------------------------------------------------------------------

    def operated(self, operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        found = count(operation, arguments, keywords, result)
        name = name_of(operation)
        if found is None:
            if computes(operation):
                self._untracked[name] += 1
            return
        self._tracked[name] += 1
        module = OUTSIDE if self._optimizing else self._running.current()
        self._flops[module, name, self._phase()] += found.flops
        if found.recomputed:
            self._flops[module, name, RECOMPUTED] += found.recomputed

    def _phase(self) -> int:
        if self._optimizing:
            return OPTIMIZER
        if self._running.recomputes:
            return RECOMPUTED
        return BACKWARD if dispatch.in_backward() else FORWARD

    def entered(self, module: nn.Module) -> None:
        number = self._running.enter(module)
        if number is not None and not self._running.recomputes:
            self._module_calls[number] += 1

    def left(self, module: nn.Module) -> None:
        self._running.leave(module)

    def resized(self, storage: torch.UntypedStorage) -> None:
        pass

    def failed(self, error: Exception) -> None:
        self.error = error

    # -- the result ---------------------------------------------------------------------------------------------------

    def _summary(self) -> BatchFlops:
        total = _by_phase(self._flops.items())
        recomputed, optimizer = total['recomputed_flops'], total['optimizer_flops']
        return BatchFlops(
            batch_flops=total['flops'],
            forward_flops=total['forward_flops'],
            backward_flops=total['backward_flops'],
            recomputed_flops=recomputed,
            optimizer_flops=optimizer,
            hardware_flops=total['flops'] + recomputed + optimizer,
            tracked_calls=self._tracked.total(),
            untracked_calls=self._untracked.total(),
            modules=self._by_module(),
            operations=self._by_operation(),
            untracked_operations=[UntrackedOperation(*each) for each in self._untracked.most_common()],
        )

    def _by_module(self) -> list[ModuleFlops]:
        own: dict[int, list[Any]] = defaultdict(list)
        for key, flops in self._flops.items():
            own[key[0]].append((key, flops))
        rows = []
        if OUTSIDE in own:
            within = _by_phase(own[OUTSIDE])
            rows.append(ModuleFlops(**within, name=OUTSIDE_NAME, type='', own_flops=within['flops'], calls=0))
        inclusive: dict[str, list[Any]] = defaultdict(list)
        exclusive: dict[str, list[Any]] = defaultdict(list)
        for number, counted in own.items():
            if number != OUTSIDE:
                name = self._modules[number][0]
                exclusive[name] += counted
                for ancestor in _with_ancestors(name):
                    inclusive[ancestor] += counted
        # A wrapper has the name of the module that it wraps; the report shows the wrapped one.
        last = {name: number for number, (name, _) in enumerate(self._modules)}
        for name, number in last.items():
            if inclusive[name] or self._module_calls[number]:
                rows.append(
                    ModuleFlops(
                        **_by_phase(inclusive[name]),
                        name=name,
                        type=class_name(self._modules[number][1]),
                        own_flops=_by_phase(exclusive[name])['flops'],
                        calls=self._module_calls[number],
                    )
                )
        return sorted(rows, key=lambda row: -row.flops)

    def _by_operation(self) -> list[OperationFlops]:
        counted: dict[str, list[Any]] = defaultdict(list)
        for key, flops in self._flops.items():
            counted[key[1]].append((key, flops))
        rows = [OperationFlops(**_by_phase(counted[name]), name=name, calls=self._tracked[name]) for name in counted]
        return sorted(rows, key=lambda row: -row.flops)


def _by_phase(counted: Iterable[tuple[tuple[int, str, int], int]]) -> dict[str, int]:
    sums = [0, 0, 0, 0]
    for (_, _, phase), flops in counted:
        sums[phase] += flops
    return {
        'flops': sums[FORWARD] + sums[BACKWARD],
        'forward_flops': sums[FORWARD],
        'backward_flops': sums[BACKWARD],
        'recomputed_flops': sums[RECOMPUTED],
        'optimizer_flops': sums[OPTIMIZER],
    }


def _with_ancestors(name: str) -> list[str]:
    """``['', 'a', 'a.b']`` for ``'a.b'``."""
    parts = name.split('.') if name else []
    return ['.'.join(parts[:length]) for length in range(len(parts) + 1)]
