"""Recorders that are used as ``with recorder:``, where only the block's own errors may reach the training."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from composer_memprof.messages import log_error, warn

_Recorder = TypeVar('_Recorder', bound='WithBlock')


class WithBlock:
    """``start`` at the block's begin; at its end ``stop``, or ``cancel`` after an exception.

    An error of ``stop`` becomes a warning that begins with ``no_result``.
    """

    no_result: ClassVar[str]

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> Any:
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Recorder) -> _Recorder:
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self.cancel()
            return
        try:
            self.stop()
        except Exception as failure:
            log_error(self.no_result)
            warn(f'{self.no_result}: {failure}')
