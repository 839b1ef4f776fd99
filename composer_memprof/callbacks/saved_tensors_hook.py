"""SavedTensorsHook: what autograd keeps for the backward pass, and who saved it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from composer.core import State
from composer.loggers import Logger
from composer.utils import dist

from composer_memprof.artifacts.names import Naming, Stamp
from composer_memprof.artifacts.store import Part
from composer_memprof.callbacks.framework.base import Output, ProfilingCallback, Ranks, Stages, when
from composer_memprof.recorders.saved_tensors.pack_functions import FunctionOrPath, resolve_functions
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder, check_has_parameters
from composer_memprof.recorders.saved_tensors.result import SavedTensors
from composer_memprof.report.text.saved_tensors import saved_tensors_text
from composer_memprof.schedule import ScheduleInput, window

_SUFFIX = '.saved_tensors.json'
#: Two batches to settle, then one.
_DEFAULT_SCHEDULE = window('1ba', skip='2ba')


class SavedTensorsHook(ProfilingCallback):
    """Records which storages autograd keeps for backward: by module, by operation, by dtype and shape.

    Each storage counts once, however many views and modules save it, for who saved it first; parameters, buffers and
    the batch's own tensors are told apart. Of a window the batch that keeps most is told in full, the others by their
    totals. Each window leaves ``.json`` and the same in short as ``.txt``. Hooks are in place within its batches only;
    while gradients are off, as in evaluation, there are none and nothing is saved.

    What can't be seen, ``unseen`` tells: what a pair of saved-tensor hooks within the model keeps (non-reentrant
    checkpoints, offloading; nothing at all where a pair is around the whole training), what ``torch.func`` runs. A
    non-reentrant checkpoint's inputs are seen, what it recomputes is not. A module under ``torch.compile`` is seen as
    a whole, with what its compiled backward keeps.

    >>> from composer_memprof import SavedTensorsHook
    >>> callback = SavedTensorsHook(schedule={'skip': '10ba', 'active': '1ba', 'every': '1000ba'})

    Args:
        saved_tensors_funcs (Sequence, optional): pack and unpack functions that autograd is to use meanwhile, each as
            a function, its dotted path, or ``'identity_lambda'`` (as pack, it detaches). What pack makes of a tensor
            is then what counts as kept. Default: ``None``, the tensors are kept as they are.
        folder (str): format string over run variables. Default: ``'{run_name}/memprof'``.
        filename (str): format string. Default: ``'rank{rank}.{batch}.saved_tensors.json'``.
        remote_file_name (str, optional): format string, with ``s3://`` or the like to that store, otherwise through
            Composer's logger. A folder without ``{batch}``, else a prefix. Default: ``None``, uploads nothing.
        overwrite (bool): replace files of the same name; otherwise they take ``.2``, … Default: ``False``.
        schedule (Schedule | dict | Callable, optional): Default: ``window('1ba', skip='2ba')``, the third batch.
        storage_options (dict, optional): for the store, beside the environment and fsspec's config.
        num_artifacts_to_keep (int): windows kept on this disk, once uploaded; -1 keeps all. Default: ``-1``.
        ranks (Sequence[int], optional): which ranks record. Default: all.
        stages (Sequence[str]): of ``train``, ``eval``, ``predict``. Default: ``('train',)``.
        compress (bool): gzip the JSON. Default: ``False``.
        close_timeout (float): seconds that the close waits for uploads. Default: ``20``.

    Raises:
        ValueError: for a parameter that is not allowed, or, when the Trainer is made, a model without parameters.
    """

    kind = 'saved_tensors_hook'

    def __init__(
        self,
        saved_tensors_funcs: Optional[Sequence[FunctionOrPath]] = None,
        folder: str = '{run_name}/memprof',
        filename: str = 'rank{rank}.{batch}.saved_tensors.json',
        remote_file_name: Optional[str] = None,
        overwrite: bool = False,
        schedule: Optional[ScheduleInput] = None,
        storage_options: Optional[Mapping[str, Any]] = None,
        num_artifacts_to_keep: int = -1,
        ranks: Ranks = None,
        stages: Stages = ('train',),
        compress: bool = False,
        close_timeout: float = 20.0,
    ) -> None:
        self._functions = resolve_functions(saved_tensors_funcs)
        super().__init__(
            when(schedule, _DEFAULT_SCHEDULE, ranks, stages),
            Output(
                folder=folder,
                naming=Naming(filename, remote_file_name, _SUFFIX if filename.endswith(_SUFFIX) else '.json'),
                storage_options=storage_options,
                overwrite=overwrite,
                num_artifacts_to_keep=num_artifacts_to_keep,
                compress=compress,
                close_timeout=close_timeout,
            ),
        )
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
            self._recorder.add_inputs(state.batch)  # of each microbatch, on its device

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
        if recorder.is_recording:  # the training broke off inside of a batch
            recorder.end()
        make = functools.cache(recorder.result())
        moment = {
            'rank': dist.get_global_rank(),
            'epoch': state.timestamp.epoch.value,
            'batch': state.timestamp.batch.value,
        }
        suffix = self.output.naming.suffix
        text_suffix = suffix.removesuffix('.json') + '.txt'
        self.store.save(
            [
                Part(self.kind, suffix, lambda path: _write_json(moment, make, path), self.output.compress),
                Part(f'{self.kind}.table', text_suffix, lambda path: _write_text(moment, make, path)),
            ],
            stamp,
        )

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None and recorder.is_recording:
            recorder.end()


def _write_json(moment: Mapping[str, int], make: Callable[[], SavedTensors], path: Path) -> None:
    path.write_text(json.dumps({**moment, **make().as_dict()}, indent=1) + '\n', encoding='utf-8')


def _write_text(moment: Mapping[str, int], make: Callable[[], SavedTensors], path: Path) -> None:
    path.write_text(saved_tensors_text({**moment, **make().as_dict()}), encoding='utf-8')
