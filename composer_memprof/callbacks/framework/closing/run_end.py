"""How a Trainer's ``fit`` ends, for the manifests of its callbacks: listed at once, before a launcher may kill the process."""

from __future__ import annotations

import signal
import sys
import traceback
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Optional

from composer.core import State

from composer_memprof.analysis.memory.blocks.frames import in_package, is_own
from composer_memprof.artifacts.reading.attempts import End
from composer_memprof.artifacts.store import ArtifactStore
from composer_memprof.callbacks.framework.closing.broken_fit import watch_fit
from composer_memprof.callbacks.framework.closing.other_process import sent_error
from composer_memprof.messages import errors_logged
from composer_memprof.redaction import as_one_line, one_line
from composer_memprof.vocabulary import IN_COLLECTIVE

#: The file of torch's collective calls, and their names.
_COLLECTIVES = 'torch/distributed/distributed_c10d.py'
_CALLS = frozenset(
    [
        'barrier',
        'monitored_barrier',
        'all_reduce',
        'all_gather',
        'all_gather_object',
        'all_gather_into_tensor',
        'broadcast',
        'broadcast_object_list',
        'reduce',
        'reduce_scatter',
        'reduce_scatter_tensor',
        'gather',
        'gather_object',
        'scatter',
        'all_to_all',
        'all_to_all_single',
        'send',
        'recv',
    ]
)
#: A shell's exit code after a signal is this and the signal's number.
_SIGNALLED = 128


class RunEnd:
    """Lists how the fits of one Trainer end.

    Args:
        state (State): of the Trainer.
    """

    def __init__(self, state: State) -> None:
        self._state = weakref.ref(state)
        self._stores: list[ArtifactStore] = []
        self._end_watch = watch_fit(state, self.fit_failed)

    def add(self, store: ArtifactStore) -> None:
        """A callback of the Trainer has opened its store."""
        self._stores.append(store)

    def remove(self, store: ArtifactStore) -> None:
        """The callback is about to close its store."""
        self._stores.remove(store)
        if not self._stores:
            self._end_watch()
            state = self._state()
            if state is not None:
                _ends.pop(state, None)

    def fit_failed(self, error: Optional[BaseException] = None) -> None:
        """An exception leaves ``fit``: by default the one that is handled now."""
        state, error = self._state(), error or sys.exc_info()[1]
        if state is None or error is None:
            return
        end, text, line = _cause(error)
        for store in {store.folder: store for store in self._stores}.values():  # one line in each manifest
            with errors_logged('the failure could not be listed'):
                store.note_failure(end, text, line, state.timestamp.batch.value)

    def fit_ended(self) -> None:
        """``fit`` has ended well."""
        for store in self._stores:
            store.note_success()


_ends: weakref.WeakKeyDictionary[State, RunEnd] = weakref.WeakKeyDictionary()


def run_end(state: State) -> RunEnd:
    """The one of the Trainer of ``state``. First call it at INIT."""
    if state not in _ends:
        _ends[state] = RunEnd(state)
    return _ends[state]


def _cause(error: BaseException) -> tuple[End, str, Optional[str]]:
    """How an error ends ``fit``, in words, and the line of the user's code: for a signal, where the training was."""
    line = line_of(error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        return 'stopped', 'SIGINT', line
    if isinstance(error, SystemExit):
        code = error.code
        if isinstance(code, int) and code > _SIGNALLED and code - _SIGNALLED in set(signal.Signals):
            return 'stopped', signal.Signals(code - _SIGNALLED).name, line
        return 'stopped', one_line(error), line
    sent = sent_error(error)
    if sent is None:
        return 'failed', one_line(error), line
    where = f', {sent.process}' if sent.process else ''
    return 'failed', f'{as_one_line(sent.text)}{where}', _innermost(sent.frames)


def line_of(trace: Optional[TracebackType]) -> Optional[str]:
    """The innermost line of the user's code, else the innermost line: ``'train.py:27 in forward'``.

    With the collective call of torch that it is in, if it is: ``'train.py:27 in forward, in torch.distributed.barrier'``.
    """
    return _innermost([(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(trace)])


def _innermost(frames: Sequence[tuple[str, int, str]]) -> Optional[str]:
    users = [frame for frame in frames if is_own(frame[0])]
    calls = [
        name for filename, _, name in frames if filename.replace('\\', '/').endswith(_COLLECTIVES) and name in _CALLS
    ]
    call = f'{IN_COLLECTIVE}{calls[0]}' if calls and users else ''
    for filename, line, name in (users or frames)[-1:]:
        return f'{_short(filename)}:{line} in {name}{call}'
    return None


def _short(filename: str) -> str:
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return in_package(filename)
