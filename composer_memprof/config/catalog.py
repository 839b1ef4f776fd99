"""Describes the callbacks from their registry, signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any, Optional

from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.callbacks.framework.importing import UnavailableCallback
from composer_memprof.callbacks.registry import CALLBACKS


@dataclass(frozen=True)
class CallbackDescription:
    """A callback as a config names it, and the defaults of its parameters."""

    name: str
    class_name: str
    #: The first line of its docstring.
    records: str
    defaults: dict[str, Any]
    #: The name of its ``**`` parameter, which its docstring explains.
    further_arguments: Optional[str]
    #: What cannot be recorded with the installed torch, and why.
    unavailable: list[str]


def describe_callbacks() -> list[CallbackDescription]:
    return [_describe(name, callback) for name, callback in CALLBACKS.items()]


def _describe(name: str, callback: type[ProfilingCallback]) -> CallbackDescription:
    imports = not issubclass(callback, UnavailableCallback)
    parameters = inspect.signature(callback).parameters.values() if imports else ()
    return CallbackDescription(
        name,
        callback.__name__,
        _plain(inspect.cleandoc(callback.__doc__ or '').partition('\n')[0]),
        {each.name: each.default for each in parameters if each.kind is not each.VAR_KEYWORD},
        next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), None),
        callback.why_unavailable(),
    )


def shared_defaults(callbacks: list[CallbackDescription]) -> dict[str, Any]:
    """The parameters that all callbacks have with the same default. One that does not import has none."""
    first, *others = [callback.defaults for callback in callbacks if callback.defaults] or [{}]
    return {name: value for name, value in first.items() if all(_has(each, name, value) for each in others)}


def _has(defaults: dict[str, Any], name: str, value: Any) -> bool:
    return name in defaults and defaults[name] == value and type(defaults[name]) is type(value)


def _plain(text: str) -> str:
    """Without the markup of docstrings."""
    return re.sub(r':\w+:`~?([^`]*)`|``([^`]*)``', lambda match: match[1] or match[2], text)
