"""What a callback says of itself, and the hooks by which it records: the part that each subclass fills in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Optional, TypeVar

from composer.core import State

from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.callbacks.framework.windows.stage_events import StageEvents
from composer_memprof.recorders.kineto import KinetoRecorder
from composer_memprof.recorders.torch_private import MissingTorchNameError, require
from composer_memprof.schedule import Schedule

_Handler = TypeVar('_Handler', bound=Callable[..., Any])
_OF_RECORDER = '_is_of_recorder'


def of_recorder(handler: _Handler) -> _Handler:
    """Decorator: the handler of an event does nothing but tell a recorder of it. It is called only while there is one."""
    setattr(handler, _OF_RECORDER, True)
    return handler


def is_of_recorder(handler: object) -> bool:
    """True for what :func:`of_recorder` has decorated."""
    return getattr(handler, _OF_RECORDER, False)


class RecordingHooks(StageEvents):
    """The attributes and hooks of a callback. :meth:`_start`, :meth:`_stop` and :meth:`_cancel` are mandatory."""

    #: The name in the manifest; with ``memprof_`` before it the name in YAML.
    kind: ClassVar[str]
    #: Of the window's main file. A ``filename`` that does not end with it counts by its last part: ``.json``.
    suffix: ClassVar[str] = '.json'
    #: The schedule unless the user gives one.
    default_schedule: ClassVar[Schedule]
    #: Whether a window is a few figures, so that any number may wait to be written.
    windows_are_small: ClassVar[bool] = False
    #: Whether an open window holds data in this process that grow with each batch. Lines are written as they come.
    grows_in_memory: ClassVar[bool] = True
    #: The modules of ``recorders.torch_private`` that its recorder needs, by what needs them; ``''`` for always.
    torch_needs: ClassVar[Mapping[str, tuple[ModuleType, ...]]] = {}
    #: Of ``exclusive``: what a recording needs for itself. Settled at INIT.
    resources: frozenset[str] = frozenset()
    #: The session of torch's profiler that it records with, if any; callbacks with equal windows share one.
    kineto: Optional[KinetoRecorder] = None

    @property
    def has_recorder(self) -> bool:
        """Whether a recorder runs, in a window or outside of one, that the handlers of :func:`of_recorder` are for."""
        return True

    def _torch_needs(self, state: State) -> tuple[ModuleType, ...]:
        """Those of ``torch_needs`` that this run needs."""
        del state  # some depend on the device
        return self.torch_needs.get('', ())

    def _check(self, state: State) -> None:
        """At INIT: settle what depends on the run, and refuse what can't work (a ValueError)."""

    def _prepare(self, state: State) -> None:
        """Before a window: warm the recorder up."""

    @abstractmethod
    def _start(self, state: State, stamp: Stamp) -> None:
        """Start to record."""

    @abstractmethod
    def _stop(self, state: State, stamp: Stamp) -> None:
        """Stop recording and hand the files to the store."""

    def _cancel(self) -> None:
        """End a warm-up, or a recording, without a result."""

    def _batch_begins(self, state: State) -> None:
        """A batch of the open window begins."""

    def _batch_ended(self, state: State) -> None:
        """A batch of the open window has ended."""

    def _fit_failed(self, state: State) -> None:
        """At the close, or before the next fit: the last fit did not reach its end."""

    def _before_close(self) -> None:
        """At the close, after the last window: hand over files that were not complete before."""

    def _on_removed(self, paths: list[Path]) -> None:
        """Called on a background thread after retention removed a window's files."""

    def yield_resources(self) -> bool:
        """Release the resources for another callback's window. False: they are needed here."""
        return False

    @property
    def session(self) -> object:
        """The owner of its resources: callbacks that share a session return the same object."""
        return self.kineto or self

    @classmethod
    def why_unavailable(cls) -> list[str]:
        """What cannot be recorded with the installed torch, and why: ``memory_filename: torch 2.16 has no …``."""
        reasons = []
        for what, modules in cls.torch_needs.items():
            try:
                require(*modules)
            except MissingTorchNameError as error:
                reasons.append(f'{what}: {error}' if what else str(error))
        return reasons
