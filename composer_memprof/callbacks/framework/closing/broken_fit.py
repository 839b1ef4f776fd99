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
    fit, method = trainer.fit, weakref.WeakMethod(on_exception)  # type: ignore[arg-type]

    @functools.wraps(fit)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        try:
            return fit(*arguments, **keywords)
        except BaseException:
            broke_off = method()
            if broke_off is not None:
                broke_off()
            raise

    was_replaced = 'fit' in vars(trainer)
    vars(trainer)['fit'] = watched
    return functools.partial(_end_watch, weakref.ref(trainer), weakref.ref(watched), was_replaced)


def _end_watch(trainer: weakref.ref[Trainer], watched: weakref.ref[Any], was_replaced: bool) -> None:
    owner, watch = trainer(), watched()
    if owner is None or watch is None:
        return
    previous = watch.__wrapped__
    if vars(owner).get('fit') is watch:  # otherwise someone else has replaced it since
        del vars(owner)['fit']
        if was_replaced:
            vars(owner)['fit'] = previous


def _trainer_of(state: State) -> Optional[Trainer]:
    """The Trainer that is being made, from the stack: neither the state nor the engine knows it."""
    frame: Optional[FrameType] = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals.get('self')
        if isinstance(found, Trainer) and getattr(found, 'state', None) is state:
            return found
        frame = frame.f_back
    return None
