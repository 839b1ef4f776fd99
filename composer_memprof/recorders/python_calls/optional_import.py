"""Imports packages that come with an extra of this package, when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from composer_memprof.messages import allowed_are


def import_optional(name: str) -> ModuleType:
    """The package ``name``, which the extra of the same name installs.

    Raises:
        ValueError: if it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{name} is not installed; run: pip install 'composer_memprof[{name}]'") from error


def check_names(arguments: Mapping[str, Any], allowed: Iterable[str], owner: str) -> None:
    """Refuse an argument that ``owner`` does not accept.

    Raises:
        ValueError: naming the argument, its value, and what is allowed.
    """
    names = tuple(allowed)
    for name, value in arguments.items():
        if name not in names:
            raise ValueError(f'{name}={value!r} is unknown to {owner}; {allowed_are(names, name)}')
