"""What pauses a training within a phase: Python's garbage collector, and torch.compile that compiles once more.

>>> import gc
>>> pauses = Pauses()
>>> pauses.start()
>>> _ = gc.collect()
>>> pauses.stop()
>>> pauses.found().collections >= 1
True
"""

from __future__ import annotations

import os
import time
from typing import Any, Optional

from composer_memprof import garbage
from composer_memprof.messages import errors_logged
from composer_memprof.recorders.step_times.found_pauses import Compiled, FoundPauses
from composer_memprof.recorders.torch_private import compilation

#: The modules of ``torch_private`` that this one uses, and does without if torch lacks a name.
NEEDS = (compilation,)
#: The collections of this generation take long: they visit every object.
_OLDEST = 2


class Pauses:
    """Measures pauses between :meth:`start` and :meth:`stop`."""

    def __init__(self) -> None:
        self._begin: Optional[float] = None
        self._collections, self._collecting = 0, 0.0
        self._since = 0.0
        self._compiled: list[Compiled] = []

    def start(self) -> None:
        """Begin to measure."""
        self._since = time.time()
        garbage.watch(self._collects)

    def stop(self) -> None:
        """End; does nothing if it has ended."""
        if garbage.unwatch(self._collects):
            with errors_logged('what torch.compile has compiled was not found'):
                self._compiled = _compiled_again(self._since)

    def found(self) -> FoundPauses:
        """The pauses so far."""
        return FoundPauses(self._collections, self._collecting, self._compiled)

    def _collects(self, phase: str, info: dict[str, Any]) -> None:
        if phase == 'start':
            self._begin = time.perf_counter()
        elif self._begin is not None:
            self._collecting += time.perf_counter() - self._begin
            self._collections += info.get('generation') == _OLDEST
            self._begin = None


def _compiled_again(since: float) -> list[Compiled]:
    if not compilation.backends_in_use():
        return []
    found: dict[str, Compiled] = {}
    for each in compilation.compilations():
        reason = getattr(each, 'recompile_reason', None)
        if not reason or (getattr(each, 'start_time', None) or 0.0) < since:
            continue
        name = f'{os.path.basename(each.co_filename or "?")}:{each.co_firstlineno} {each.co_name}'
        before = found.get(name)
        times, seconds = (before.times, before.seconds) if before is not None else (0, 0.0)
        seconds += getattr(each, 'entire_frame_compile_time_s', None) or 0.0
        found[name] = Compiled(name, times + 1, seconds, str(reason).partition(': ')[2][:200] or str(reason)[:200])
    return sorted(found.values(), key=lambda one: -one.seconds)[:3]
