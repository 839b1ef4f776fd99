"""MemProfiler in a training loop without a Trainer: connect it to the model, and mark the functions to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from composer.core import State, Timestamp
from composer.loggers import Logger
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import Self

from composer_memprof.artifacts.naming.addresses import scheme_of
from composer_memprof.artifacts.naming.names import Stamp, folder_of
from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.callbacks.framework.closing import closing
from composer_memprof.callbacks.framework.run_checks import check_writable
from composer_memprof.callbacks.mem_profiler.by_hand import ByHand
from composer_memprof.callbacks.mem_profiler.functions import FUNCTIONS
from composer_memprof.recorders.functions import marked
from composer_memprof.recorders.functions.early_history import EarlyHistory
from composer_memprof.recorders.functions.plan import FunctionPlan
from composer_memprof.recorders.functions.recorder import FunctionMemoryRecorder

#: ``{run_name}`` in a loop without a Trainer.
RUN_NAME = 'memprofiler'


class WithoutTrainer(ByHand):
    """Reads marked functions in windows, and has the methods that a loop without a Trainer calls."""

    _plan: FunctionPlan
    enabled = True
    _early: Optional[EarlyHistory] = None
    #: Whether :meth:`connect` opened the window, and no Trainer.
    _connected = False

    def connect(self, module: Module, optimizers: Sequence[Optimizer] = ()) -> Self:
        """Read marked functions and :meth:`memprofile_ctx` blocks from now until :meth:`disconnect`.

        Interpreter exit disconnects what is still connected.

        Raises:
            ValueError: for a model, a folder or a destination that is not allowed.
        """
        self.disconnect()
        if not self.enabled:
            return self
        remote = self.output.naming.remote
        if remote is not None and scheme_of(remote) is None:
            raise ValueError(f"remote_file_name={remote!r} needs a Trainer's logger; name a store, as s3://...")
        destination = FsspecDestination(self.output.storage_options, self.output.overwrite) if remote else None
        folder = folder_of(self.output.folder, RUN_NAME)
        check_writable(folder, self.output.folder)
        recorder = self._make_recorder(module, optimizers)
        self._open_store(folder, destination)
        self._connected = True
        if self._early is not None:
            self._early.begin()
        self._listen(recorder)
        self._begin_window(Stamp(RUN_NAME, Timestamp()))
        return self

    def disconnect(self) -> None:
        """Close the files, and wait up to ``close_timeout`` seconds for their upload."""
        if self._store is None or self._is_parents:
            return
        self._connected = False
        self._end_window()
        self._listen(None)
        store, self._store = self._store, None
        closing.is_closed(self)
        store.close(self.output.close_timeout)

    def init(self, state: State, logger: Logger) -> None:
        if self._connected:
            self.disconnect()
        super().init(state, logger)

    def close_late(self, *, save: bool) -> None:
        if save and self._connected:
            self.disconnect()
        else:
            super().close_late(save=save)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.disconnect()

    # -- windows ----------------------------------------------------------------------------------------------------

    def _make_recorder(
        self, model: Module, optimizers: Sequence[Optimizer], reserved: Sequence[str] = ()
    ) -> FunctionMemoryRecorder:
        self._plan.check(model)
        sources = self._plan.make_sources(
            model, optimizers, self._stats.take_memory, self._stats.take_snapshot, self._early
        )
        return FunctionMemoryRecorder(self._plan.selection, sources, self._stats.take, reserved)

    def _begin_window(self, stamp: Stamp) -> None:
        assert self._functions is not None
        self._stats.open(self.store, stamp)
        self._functions.open()

    def _end_window(self) -> None:
        if self._functions is not None:
            self._functions.close()
        if self._early is not None:
            self._early.cancel()  # if no call was read
        self._stats.close()

    def _listen(self, recorder: Optional[FunctionMemoryRecorder]) -> None:
        """Connect ``recorder`` to marked functions in place of the current one; it continues its call counts."""
        before, self._functions = self._functions, recorder
        self._snapped = {}
        if before is not None:
            marked.disconnect(before)
            before.close()
        if recorder is None:
            if before is not None:
                before.warn_of_functions_that_never_ran(FUNCTIONS)
            return
        if before is not None:
            recorder.call_counts.update(before.call_counts)
        marked.connect(recorder)
