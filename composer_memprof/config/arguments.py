"""A config's names and arguments, checked against the signature of what they build."""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import torch

from composer_memprof.messages import allowed_are, log_error, must_be


class ConfigError(ValueError):
    """A user's mistake in a config: one line with the key, the value and what is allowed."""


def check_names(key: str, names: Mapping[Any, Any], allowed: Sequence[str]) -> None:
    """Refuse a name that is not allowed under ``key``. Its value is not shown: it may be a secret.

    Raises:
        ConfigError: naming it and what is allowed.
    """
    for name in names:
        if name not in allowed:
            raise ConfigError(f'{_dotted(key, name)} is unknown; {allowed_are(allowed, name)}')


def call(key: str, builder: Callable[..., Any], arguments: Optional[Mapping[str, Any]], *given: Any) -> Any:
    """Call ``builder`` with the positional arguments ``given`` and the ``arguments`` under ``key``.

    Raises:
        ConfigError: if an argument is unknown or missing, or ``builder`` refuses one.
    """
    if arguments is not None and not isinstance(arguments, dict):
        raise ConfigError(f'{key} must be a mapping of arguments, such as {{}}, not {shown(arguments)}')
    arguments = arguments or {}
    parameters = [
        each for each in inspect.signature(builder).parameters.values() if each.kind is not each.VAR_POSITIONAL
    ]
    parameters = parameters[len(given) :]
    allowed = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    if len(allowed) == len(parameters):
        check_names(key, arguments, allowed)
    for parameter in parameters:
        needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if needed and parameter.name not in arguments:
            raise ConfigError(f'{key}.{parameter.name} is missing; {key} takes {", ".join(allowed)}')
    with one_line_errors(key, builder, arguments):
        return builder(*given, **arguments)


@contextlib.contextmanager
def one_line_errors(key: str, builder: Callable[..., Any], arguments: Mapping[str, Any]) -> Iterator[None]:
    """Turn what ``builder`` raises for its ``arguments`` into a ConfigError that names ``key``."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, AttributeError) as error:
        log_error(f'{key or builder.__name__} could not be built')
        refusal = _refusal(key, builder, arguments, error)
        if refusal is None:
            raise
        raise refusal from error


def _refusal(
    key: str, builder: Callable[..., Any], arguments: Mapping[str, Any], error: Exception
) -> Optional[ConfigError]:
    """The message for an ``error`` of ``builder``. None if it may be a bug."""
    if isinstance(error, (TypeError, AttributeError)):
        for name, kinds in _kinds_of(builder).items():
            if name in arguments and type(arguments[name]) not in kinds:
                words = dict.fromkeys(_WORDS[kind] for kind in kinds if kind is not int or float not in kinds)
                return ConfigError(str(must_be(_dotted(key, name), ' or '.join(words), _Shown(arguments[name]))))
    if isinstance(error, AttributeError):
        return None
    # A callback's own error may begin with its class, which the key names already.
    message = one_line(error).removeprefix(f'{getattr(builder, "__name__", "")}: ')
    return ConfigError(f'{key}: {message}' if key else message)


_WORDS = {
    bool: 'true or false',
    int: 'a whole number',
    float: 'a number',
    str: 'text',
    list: 'a list',
    dict: 'a mapping',
    type(None): 'null',
}


def _kinds_of(builder: Callable[..., Any]) -> dict[str, list[type]]:
    """The YAML types that each parameter allows by its annotation, where the annotation tells."""
    try:
        hints = typing.get_type_hints(builder.__init__ if isinstance(builder, type) else builder)  # type: ignore[misc]
    except Exception:  # an annotation that can't be evaluated
        log_error(f'the annotations of {builder!r} could not be read')
        return {}
    none_by_default = {name for name, each in inspect.signature(builder).parameters.items() if each.default is None}
    kinds = {name: _kinds(Optional[hint] if name in none_by_default else hint) for name, hint in hints.items()}
    return {name: allowed for name, allowed in kinds.items() if allowed}


def _kinds(hint: Any) -> Optional[list[type]]:
    """The YAML types that an annotation allows. None if it names a type that a text, say, may be converted to."""
    origin = typing.get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        members = [_kinds(member) for member in typing.get_args(hint)]
        return None if None in members else [kind for member in members for kind in member or []]
    if origin is float:
        return [float, int]
    if origin in _WORDS:
        return [origin]
    if origin in (tuple, collections.abc.Sequence, collections.abc.Iterable):
        return [list, str] if str in typing.get_args(hint) else [list]
    if origin is collections.abc.Mapping:
        return [dict]
    return [] if origin is torch.Tensor else None  # no YAML value is a tensor


class _Shown:
    """A value in an error message. A mapping's content is left out: it may hold secrets."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return '{...}' if isinstance(self._value, dict) else repr(self._value)


def shown(value: object) -> str:
    return repr(_Shown(value))


def _dotted(key: str, name: object) -> str:
    return f'{key}.{name}' if key else str(name)


def one_line(error: BaseException) -> str:
    return ' '.join(str(error).split()) or type(error).__name__
