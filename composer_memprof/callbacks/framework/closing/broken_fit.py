"""Knowing at once that ``Trainer.fit`` was ended by an exception, whoever catches it.

Composer has no event for it: ``close`` comes later or at the exit of the process, when a caught exception is forgotten.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Optional

from composer.core import State
from composer.trainer import Trainer

#: The attribute of a watched ``fit`` with its watch.
_WATCH = '_composer_memprof_watch'


class _Watch:
    """The functions to call when ``fit`` of one Trainer breaks off, and what takes the watch away."""

    def __init__(self, trainer: Trainer) -> None:
        self.listeners: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._trainer = weakref.ref(trainer)
        self._replaced = vars(trainer).get('fit')  # the method of the class is not among them
        fit = trainer.fit

        @functools.wraps(fit)
        def watched(*arguments: Any, **keywords: Any) -> Any:
            try:
                return fit(*arguments, **keywords)
            except BaseException:
                for listener in list(self.listeners):
                    broke_off = listener()
                    if broke_off is not None:
                        broke_off()
                raise

        watched.__dict__[_WATCH] = self
        vars(trainer)['fit'] = watched
        self._watched = weakref.ref(watched)

    def end(self, listener: weakref.WeakMethod[Callable[[], None]]) -> None:
        """Do not call ``listener`` any more; without listeners nothing is watched."""
        if listener in self.listeners:
            self.listeners.remove(listener)
        trainer, watched = self._trainer(), self._watched()
        if self.listeners or trainer is None or watched is None or vars(trainer).get('fit') is not watched:
            return  # somebody else has replaced it since
        del vars(trainer)['fit']
        if self._replaced is not None:
            vars(trainer)['fit'] = self._replaced


def watch_fit(state: State, on_exception: Callable[[], None]) -> Callable[[], None]:
    """Call ``on_exception`` while an exception leaves ``fit`` of the Trainer of ``state``.

    Must be called within the Trainer's INIT; otherwise nothing is watched.

    Args:
        state (State): of the Trainer.
        on_exception (Callable): a bound method that raises nothing. ``sys.exc_info()`` has the exception. The watch
            does not keep its object alive.

    Returns a function that ends the watch. It does not keep the Trainer alive.
    """
    trainer = _trainer_of(state)
    if trainer is None:
        return lambda: None
    watch = getattr(vars(trainer).get('fit'), _WATCH, None) or _Watch(trainer)
    listener = weakref.WeakMethod(on_exception)  # type: ignore[arg-type]
    watch.listeners.append(listener)
    return functools.partial(watch.end, listener)


def _trainer_of(state: State) -> Optional[Trainer]:
    """The Trainer that is being made, from the stack: neither the state nor the engine knows it."""
    frame: Optional[FrameType] = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals.get('self')
        if isinstance(found, Trainer) and getattr(found, 'state', None) is state:
            return found
        frame = frame.f_back
    return None
