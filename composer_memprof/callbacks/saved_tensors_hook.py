"""SavedTensorsHook: what autograd keeps for the backward pass, and who saved it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Optional

from composer.core import State
from composer.loggers import Logger
from typing_extensions import Unpack

from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.framework.options import COMPRESS, SharedParameters, takes_shared_parameters
from composer_memprof.recorders.saved_tensors import recorder as saved_tensors
from composer_memprof.recorders.saved_tensors.pack_functions import FunctionOrPath, resolve_functions
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder, check_has_parameters
from composer_memprof.report.text.tables.files import write_json, write_text
from composer_memprof.report.text.tables.saved_tensors import saved_tensors_text
from composer_memprof.schedule import window


@takes_shared_parameters(
    filename='rank{rank}.{batch}.saved_tensors.json',
    docs={
        'schedule': "which batches are recorded. Default: ``window('1ba', skip='2ba')``, the third batch.",
        'compress': f'the JSON: {COMPRESS}. Default: ``False``.',
    },
)
class SavedTensorsHook(ProfilingCallback):
    """Records which storages autograd keeps for backward: by module, by operation, by dtype and shape.

    Each storage counts once, for the module that saved it first, however many views and modules save it. Parameters,
    buffers and the batch's own tensors are counted apart. The file describes the batch of the window that keeps most
    in full, and the others by their totals. Each window writes ``.json`` and a short ``.txt``, and logs of that batch, in
    bytes, ``saved_tensors/total_bytes`` and ``saved_tensors/peak_bytes``, the most alive at one time. Hooks are in place
    only within its batches; while gradients are off, as in evaluation, nothing is saved.

    ``unseen`` lists what can't be seen: tensors kept by saved-tensor hooks inside the model (non-reentrant
    checkpoints, offloading), everything if such hooks surround the whole training, and what ``torch.func`` runs. The
    inputs of a non-reentrant checkpoint are seen, what it recomputes is not. Nor is what a custom Function keeps
    without ``save_for_backward``, as in ``ctx.x = x``; ``FSDPMemTracker`` counts it. A module under ``torch.compile`` is seen
    as a whole, with what its compiled backward keeps.

    >>> from composer_memprof import SavedTensorsHook
    >>> callback = SavedTensorsHook(schedule={'skip': '10ba', 'active': '1ba', 'every': '1000ba'})

    Args:
        saved_tensors_funcs (Sequence, optional): pack and unpack functions for autograd to use in the window, each as
            a function, its dotted path, or ``'identity_lambda'`` (as pack, it detaches). Then the output of pack
            counts as kept. Default: ``None``, the tensors are kept as they are.
        <shared parameters>

    Raises:
        ValueError: for a parameter that is not allowed; when the Trainer is made, for a model without parameters.
    """

    kind = 'saved_tensors_hook'
    torch_needs = {'': saved_tensors.NEEDS}
    suffix = '.saved_tensors.json'
    default_schedule = window('1ba', skip='2ba')

    def __init__(
        self,
        saved_tensors_funcs: Optional[Sequence[FunctionOrPath]] = None,
        **shared: Unpack[SharedParameters],
    ) -> None:
        self._functions = resolve_functions(saved_tensors_funcs)
        super().__init__(**shared)
        self._recorder: Optional[SavedTensorsRecorder] = None

    def _check(self, state: State) -> None:
        check_has_parameters(state.model)

    def _start(self, state: State, stamp: Stamp) -> None:
        del stamp  # unused
        self._recorder = SavedTensorsRecorder(state.model, self._functions)

    def _batch_begins(self, state: State) -> None:
        if self._recorder is not None:
            self._recorder.begin(state.timestamp.batch.value)
            self._recorder.add_inputs(state.batch)

    def before_forward(self, state: State, logger: Logger) -> None:
        del logger  # unused
        if self._recorder is not None:
            self._recorder.add_inputs(state.batch)  # of this microbatch, on its device

    def _batch_ended(self, state: State) -> None:
        del state  # unused
        recorder = self._recorder
        if recorder is not None:
            recorder.end()
            if recorder.error is not None:
                raise recorder.error

    def _stop(self, state: State, stamp: Stamp) -> None:
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        if recorder.is_recording:  # the training failed inside a batch
            recorder.end()
        self._add_metrics(recorder)
        make = functools.cache(recorder.result())
        head = self._head(state)
        suffix = self.output.naming.suffix
        text_suffix = suffix.removesuffix('.json') + '.txt'
        self.store.save(
            [
                Part(
                    self.kind,
                    suffix,
                    lambda path: write_json({**head.as_dict(), **make().as_dict()}, path),
                    self.output.compress,
                ),
                Part(
                    f'{self.kind}.table',
                    text_suffix,
                    lambda path: write_text(saved_tensors_text(head, make()), path),
                ),
            ],
            stamp,
        )

    def _add_metrics(self, recorder: SavedTensorsRecorder) -> None:
        largest = max(recorder.batches, key=lambda batch: batch.total_bytes, default=None)
        if largest is not None:
            group = self._metric_group('saved_tensors', self._stage)
            self._window_metrics.add(
                {f'{group}/peak_bytes': largest.peak_bytes, f'{group}/total_bytes': largest.total_bytes}
            )

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None and recorder.is_recording:
            recorder.end()
