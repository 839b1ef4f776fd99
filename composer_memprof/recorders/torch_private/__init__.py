"""Every private name of torch that this package uses, in one room: the only place that says ``torch._C._…``.

One module for each part of torch. Each name is looked up by :func:`private`, which keeps its path and the versions of
torch that it was seen in. Importing these modules never fails: a name that the installed torch lacks becomes a stand-in
that raises :class:`MissingTorchNameError` when it is used, and :func:`missing` lists it.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch


class MissingTorchNameError(RuntimeError):
    """The installed torch lacks a private name that is needed here."""


@dataclass(frozen=True)
class PrivateName:
    """A private name of torch.

    Args:
        path (str): dotted, from ``torch`` on: ``torch._C._current_graph_task_id``.
        seen (str): the versions of torch that it was seen in, as ``2.6 to 2.11``.
        module (str): the module of this room that looks it up.
    """

    path: str
    seen: str
    module: str

    def find(self) -> Any:
        """The object itself.

        Raises:
            MissingTorchNameError: if the installed torch has none.
        """
        parts = self.path.split('.')
        for count in range(len(parts), 0, -1):
            try:
                found: Any = importlib.import_module('.'.join(parts[:count]))
            except ImportError:
                continue
            try:
                return functools.reduce(getattr, parts[count:], found)
            except AttributeError:
                break
        raise MissingTorchNameError(f'torch {torch.__version__} has no {self.path} (seen in torch {self.seen})')


#: Every name that was looked up, by path. Filled as the modules of this room are imported.
NAMES: dict[str, PrivateName] = {}


def private(path: str, *, seen: str, module: str) -> Any:
    """The object at ``path``, or a stand-in that raises :class:`MissingTorchNameError` when it is called or read.

    Args:
        path (str): dotted, from ``torch`` on.
        seen (str): the versions of torch that it was seen in.
        module (str): ``__name__`` of the caller.
    """
    name = NAMES[path] = PrivateName(path, seen, module)
    try:
        return name.find()
    except MissingTorchNameError as error:
        return _StandIn(str(error))


class _StandIn:
    """In place of a missing name."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise MissingTorchNameError(self._message)

    def __getattr__(self, name: str) -> Any:
        raise MissingTorchNameError(self._message)


def missing(*modules: ModuleType) -> list[PrivateName]:
    """The names that the installed torch lacks, of the given modules of this room; of all without arguments."""
    wanted = {module.__name__ for module in modules}
    found = []
    for name in NAMES.values():
        if not wanted or name.module in wanted:
            try:
                name.find()
            except MissingTorchNameError:
                found.append(name)
    return found
