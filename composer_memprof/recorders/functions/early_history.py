"""The CUDA allocator's history from before the first call that is read, so that what was allocated earlier has a stack."""

from __future__ import annotations

import weakref

from composer_memprof.messages import log_error, warn
from composer_memprof.recorders.allocations.allocator_history import AllocatorHistory
from composer_memprof.recorders.torch_private import cuda_allocator


class EarlyHistory:
    """Records from the moment on that CUDA is started; does not start it itself.

    Args:
        history (AllocatorHistory): with the arguments to record with. A source that records with the same ones later
            continues it.
    """

    def __init__(self, history: AllocatorHistory) -> None:
        self._history = history
        self.is_wanted = False
        self._is_recording = False

    def begin(self) -> None:
        """Record from now on, or from CUDA's start. Does nothing where it does already."""
        if not self.is_wanted:
            self.is_wanted = True
            this = weakref.ref(self)
            cuda_allocator.call_when_started(lambda: _start(this()))

    def hand_over(self) -> None:
        """A source records from now on, and ends the recording."""
        self.is_wanted = self._is_recording = False

    def cancel(self) -> None:
        """End the recording, if it is still this one's."""
        recording = self._is_recording
        self.hand_over()
        if recording:
            self._history.cancel()

    def __del__(self) -> None:
        self.cancel()  # of a callback that no Trainer ever had

    def start(self) -> None:
        """CUDA is started."""
        if self.is_wanted and not self._is_recording:
            self._history.start()
            self._is_recording = True


def _start(early: EarlyHistory | None) -> None:
    """Called inside of the user's first use of CUDA, which must not fail for it."""
    try:
        if early is not None:
            early.start()
    except Exception as error:
        log_error('the early start of the allocator history failed', error)
        warn(f'the allocator history begins with the first call that is read: {type(error).__name__}: {error}')
