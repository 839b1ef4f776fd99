"""Reading a JSON file that is not trusted into a dataclass: each value has the type of its field, or there is an error."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar, Union

from composer_memprof.analysis.snapshot.untrusted import LARGEST, shown
from composer_memprof.artifacts.naming.compression import DAMAGE, CodecMissingError, open_for_read
from composer_memprof.messages import printable

_T = TypeVar('_T')


class FormatError(ValueError):
    """The file is not what it should be. The message is one line."""


def read_json(kind: type[_T], path: Path, what: str, most_bytes: int) -> _T:
    """The dataclass ``kind`` from the JSON file ``path``, compressed or not. Unknown keys, of a newer version, are ignored.

    Args:
        kind (type): a dataclass. A field may be an int, a float (NaN and what is beyond 2**63 are refused), a str, a bool, another dataclass, or a
            list, a dict or an optional of these. A field with a default may be missing in the file.
        path (Path): the file.
        what (str): for the error, such as ``'a summary'``.
        most_bytes (int): a larger file is refused.

    Raises:
        FormatError: if the file does not have this format.
        OSError: if it can't be read.
    """
    try:
        with open_for_read(path) as file:
            text = file.read(most_bytes + 1)
        if len(text) > most_bytes:
            raise FormatError(f'it has more than {most_bytes} bytes')
        return from_plain(kind, json.loads(text))
    except CodecMissingError as error:
        raise FormatError(f'{printable(str(path))} cannot be read: {error}') from None
    except FormatError as error:
        raise FormatError(f'{printable(str(path))} is not {what}: {error}') from None
    except (ValueError, RecursionError, *DAMAGE):
        raise FormatError(f'{printable(str(path))} is not {what}: it is not JSON') from None


def from_plain(kind: type[_T], values: Any) -> _T:
    """The dataclass ``kind`` from plain values, as :func:`read_json` does it.

    Raises:
        FormatError: if a value has another type than its field, or one is missing.
    """
    return _read(kind, values, 'it')


def _read(kind: type[_T], values: Any, name: str) -> _T:
    """A dataclass from a mapping of its fields. A field with a default may be missing."""
    if type(values) is not dict:
        raise FormatError(f'{name} must be a mapping, not {shown(values)}')
    found = {}
    types_of = _types_of(kind)  # type: ignore[arg-type]
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in values:
            found[field.name] = _value(types_of[field.name], values[field.name], field.name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FormatError(f'{name} has no {field.name}')
    return kind(**found)


@functools.cache
def _types_of(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(kind: Any, value: Any, name: str) -> Any:
    """``value``, if it is of type ``kind``, which :func:`read_json` describes."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(arguments[0], value, name)
    if origin is list and type(value) is list:
        return [_value(arguments[0], one, name) for one in value]
    if origin is dict and type(value) is dict:
        return {printable(key): _value(arguments[1], one, name) for key, one in value.items()}
    if dataclasses.is_dataclass(kind):
        return _read(kind, value, name)  # type: ignore[arg-type]
    accepted = (int, float) if kind is float else (kind,)
    # Also NaN, which no comparison finds to be small enough.
    if type(value) not in accepted or (kind in (int, float) and not abs(value) <= LARGEST):
        raise FormatError(f'{name} must be {_TYPES[origin or kind]}, not {shown(value)}')
    return printable(value) if kind is str else float(value) if kind is float else value


_TYPES = {
    int: 'a whole number',
    float: 'a number',
    str: 'text',
    bool: 'true or false',
    list: 'a list',
    dict: 'a mapping',
}
