"""A line on stderr while ``torch.compile`` takes long: the script prints nothing meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from composer_memprof.recorders.torch_private.compilation import on_compile_end, on_compile_start

#: Seconds until the first line. Each further one waits twice as long.
_PATIENCE_S = 20.0


def tell_of_long_compiles(patience: float = _PATIENCE_S) -> None:
    """Print such lines from now on. It can't be undone."""
    running: list[threading.Event] = []

    def begin(*_: Any) -> None:
        running.append(threading.Event())
        threading.Thread(target=_tell, args=(running[-1], patience), name='memprof-compile', daemon=True).start()

    def end(*_: Any) -> None:
        if running:
            running.pop().set()

    on_compile_start(begin)
    on_compile_end(end)


def _tell(ended: threading.Event, patience: float) -> None:
    began = time.monotonic()
    while not ended.wait(patience):
        print(f'simulated GPU: torch.compile has taken {time.monotonic() - began:.0f} s so far', file=sys.stderr)
        patience *= 2
