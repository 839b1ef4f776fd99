"""Record what autograd keeps for the backward pass: by module, by operation, by dtype and shape.

with SavedTensorsRecorder(model) as recorder:
    loss_of(model(batch)).backward()
print(recorder.result()().total_bytes)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import nn

from composer_memprof.recorders.saved_tensors.hooks import SavedTensorCapture, open_capture
from composer_memprof.recorders.saved_tensors.pack_functions import FunctionOrPath, resolve_functions
from composer_memprof.recorders.saved_tensors.result import BatchBytes, SavedTensors
from composer_memprof.recorders.saved_tensors.summary import summarize
from composer_memprof.recorders.torch_private import (
    compilation,
    graph_tasks,
    module_hooks,
    saved_tensor_hooks,
    tensors,
)

#: The modules of ``torch_private`` that this needs.
NEEDS = (saved_tensor_hooks, graph_tasks, module_hooks, compilation, tensors)

#: Keys of ``SavedTensors.unseen``.
_GRADIENTS_OFF = 'gradients are off, so that nothing is saved'
_OTHER_HOOKS = 'a pair of saved-tensor hooks around the whole batch keeps what is saved'


class SavedTensorsRecorder:
    """Records what autograd keeps in one batch or several; usable without a Trainer.

    Hooks are in the model and in autograd from :meth:`begin` to :meth:`end` only, and not at all while gradients are
    off. Where a pair of hooks of the user's is active around the whole batch, nothing is recorded. Where one is active
    within the forward pass, as a checkpoint's, what it saves is not seen; ``unseen`` in the result lists it.

    As with any pair of hooks, a tensor that a custom autograd Function saved comes back equal, but as another Python
    object. A tensor that was modified in place is an error, as without hooks.

    Args:
        model (Module): the modules to report.
        functions (Sequence, optional): pack and unpack in place of detaching: functions, dotted paths or
            ``'identity_lambda'``. What pack returns is what counts as kept.

    Raises:
        ValueError: for a model without parameters, or functions that can't be found.
    """

    def __init__(self, model: nn.Module, functions: Optional[Sequence[FunctionOrPath]] = None) -> None:
        check_has_parameters(model)
        self.model = model
        self.functions = resolve_functions(functions)
        self.batches: list[BatchBytes] = []
        self._largest: Optional[SavedTensorCapture] = None
        self._largest_batch: Optional[int] = None
        self._capture: Optional[SavedTensorCapture] = None
        self._is_recording = False
        self._batch = 0
        self._unseen: dict[str, set[str]] = {}
        #: The first error in a hook; the training never sees it.
        self.error: Optional[BaseException] = None

    @property
    def is_recording(self) -> bool:
        return self._is_recording

    def begin(self, batch: Optional[int] = None) -> None:
        """A batch begins: set the hooks. ``batch`` is its number, by default counted from 0."""
        if self._is_recording:
            self.end()
        self._is_recording = True
        self._batch = len(self.batches) if batch is None else batch
        if not torch.is_grad_enabled():
            self._unseen.setdefault(_GRADIENTS_OFF, set())
            return
        self._capture = open_capture(self.model, self.functions)
        if self._capture is None:
            self._unseen.setdefault(_OTHER_HOOKS, set())

    def add_inputs(self, batch: Any) -> None:
        """Count the tensors in ``batch`` as inputs. Arguments of the model are found without this."""
        if self._capture is not None:
            self._capture.ledger.add_inputs(batch)

    def end(self) -> None:
        """The batch ended: remove the hooks."""
        capture, self._capture = self._capture, None
        self._is_recording = False
        number = self._batch
        if capture is None:
            self.batches.append(BatchBytes(number, 0, 0, 0, 0))
            return
        capture.leave()
        ledger = capture.ledger
        self.error = self.error or ledger.error
        forwards = sum(
            capture.is_of_model(call) and not call.recomputes and not capture.is_inside_wrapper(call)
            for call in ledger.calls
        )
        self.batches.append(BatchBytes(number, ledger.total, ledger.peak, ledger.packed_bytes, forwards))
        for what, names in ledger.unseen.items():
            self._unseen.setdefault(what, set()).update(names)
        if self._largest is None or ledger.total > self._largest.ledger.total:
            self._largest, self._largest_batch = capture, number

    def so_far(self) -> tuple[int, int]:
        """``packed_bytes`` and ``total_bytes`` of the current batch until now."""
        capture = self._capture
        return (capture.ledger.packed_bytes, capture.ledger.total) if capture is not None else (0, 0)

    def __enter__(self) -> SavedTensorsRecorder:
        self.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def result(self) -> Callable[[], SavedTensors]:
        """Read times from the device. The function returned makes the result; it may run later, in another process."""
        largest, batches = self._largest, list(self.batches)
        forwards = next((each.forwards for each in batches if each.batch == self._largest_batch), 0)
        unseen = {what: sorted(names) for what, names in self._unseen.items()}
        seconds = largest.seconds() if largest is not None else []

        def make() -> SavedTensors:
            return summarize(largest, seconds, self._largest_batch, forwards, batches, unseen)

        return make


def check_has_parameters(model: nn.Module) -> None:
    """Refuse a model for which autograd saves nothing.

    Raises:
        ValueError: if it has no parameters.
    """
    if next(model.parameters(), None) is None:
        raise ValueError(f'{type(model).__name__} has no parameters, so autograd saves nothing')
