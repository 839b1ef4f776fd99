"""Every private name of torch that this package uses: nothing outside of this folder says ``torch._C._…``.

One module for each area of torch. :func:`private` and :func:`private_attribute` look a name up and record its path and
the versions of torch that have it. Importing these modules never fails: a name that the installed torch lacks becomes
a stand-in that raises :class:`MissingTorchNameError` when it is used.

Each recorder lists the modules that it needs in a constant ``NEEDS``; :func:`missing` returns the names they lack,
and :func:`require` raises for them. ``tests/recorders/test_torch_private.py`` lists what the installed torch lacks, by recorder.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from types import ModuleType
from typing import Any, Optional

import torch

#: The versions of torch that the callbacks were run on, and that have each name here unless it says otherwise.
CHECKED = '2.6 to 2.15'


class MissingTorchNameError(RuntimeError):
    """The installed torch lacks a private name that is needed here."""


@dataclass(frozen=True)
class PrivateName:
    """A private name of torch.

    Args:
        path (str): dotted, from ``torch`` on: ``torch._C._current_graph_task_id``.
        seen (str): the versions of torch that have it, as ``2.6 to 2.15``.
        module (str): the module of this package that looks it up.
        owner (Callable, optional): makes an object with the last part of ``path``, for a name that is found on
            instances only.
    """

    path: str
    seen: str
    module: str
    owner: Optional[Callable[[], Any]] = None

    def find(self) -> Any:
        """The object itself.

        Raises:
            MissingTorchNameError: if the installed torch has none.
        """
        try:
            if self.owner is not None:
                return getattr(self.owner(), self.path.rpartition('.')[2])
            return _look_up(self.path)
        except (AttributeError, ImportError, MissingTorchNameError) as error:
            raise MissingTorchNameError(_what_to_do([self])) from error


def _look_up(path: str) -> Any:
    parts = path.split('.')
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module('.'.join(parts[:count]))
        except ImportError:
            continue
        return functools.reduce(getattr, parts[count:], found)
    raise AttributeError(path)


#: Every name that was looked up. Filled as the modules of this package are imported.
NAMES: list[PrivateName] = []


def private(path: str, *, seen: str = CHECKED, module: str) -> Any:
    """The object at ``path``, or a stand-in that raises :class:`MissingTorchNameError` when it is called or read.

    Args:
        path (str): dotted, from ``torch`` on.
        seen (str): the versions of torch that have it, where it is not in all of ``CHECKED``.
        module (str): ``__name__`` of the caller.
    """
    name = PrivateName(path, seen, module)
    NAMES.append(name)
    try:
        return name.find()
    except MissingTorchNameError as error:
        return _StandIn(str(error))


def private_attribute(path: str, *, seen: str = CHECKED, module: str, owner: Optional[Callable[[], Any]] = None) -> Any:
    """A function that reads an attribute of torch's objects: ``version_of(tensor)`` is ``tensor._version``.

    Args:
        path (str): the class's dotted path and the attribute: ``torch.Tensor._version``.
        seen (str): the versions of torch that have it, where it is not in all of ``CHECKED``.
        module (str): ``__name__`` of the caller.
        owner (Callable, optional): makes an object with the attribute, where the class itself does not have it. Called
            by :func:`missing` only.
    """
    if owner is None:
        found = private(path, seen=seen, module=module)
        if not is_found(found):
            return found
    else:
        NAMES.append(PrivateName(path, seen, module, owner))
    return attrgetter(path.rpartition('.')[2])


def is_found(value: Any) -> bool:
    """False for the stand-in of a missing name."""
    return not isinstance(value, _StandIn)


class _StandIn:
    """Takes the place of a missing name. Every use raises; a class may be derived from it, but not instantiated."""

    def __init__(self, message: str) -> None:
        self._message = message

    def _raise(self, *arguments: Any, **keywords: Any) -> Any:
        raise MissingTorchNameError(self._message)

    __call__ = __instancecheck__ = _raise

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type('MissingTorchClass', (), {'__init__': self._raise}),)

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):  # Python itself looks for these on any object
            raise AttributeError(self._message)
        raise MissingTorchNameError(self._message)


def missing(*modules: ModuleType) -> list[PrivateName]:
    """The names of the given modules of this package that the installed torch lacks; of all modules without arguments.

    Args:
        modules (ModuleType): as listed in a recorder's ``NEEDS``.
    """
    wanted = {module.__name__ for module in modules}
    found = []
    for name in NAMES:
        if not wanted or name.module in wanted:
            try:
                name.find()
            except MissingTorchNameError:
                found.append(name)
    return found


def require(*modules: ModuleType) -> None:
    """Refuse to go on where names of the given modules are missing. Without modules nothing is needed.

    Raises:
        MissingTorchNameError: naming them all.
    """
    names = missing(*modules) if modules else []
    if names:
        raise MissingTorchNameError(_what_to_do(names))


def _what_to_do(names: list[PrivateName]) -> str:
    lacking = ', '.join(f'{name.path} (seen in torch {name.seen})' for name in names)
    them = 'it' if len(names) == 1 else 'them'
    return f'torch {torch.__version__} has no {lacking}; install a torch that has {them}, or a newer composer_memprof'
