"""Readings of functions' memory as text, entry by entry, so that a file is whole at every moment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r'[\w.]+', re.ASCII)
#: What YAML takes for another value than a text.
_OTHER_VALUES = frozenset({'null', 'true', 'false', 'yes', 'no', 'on', 'off', 'y', 'n'})


def yaml_entry(key: str, values: Mapping[str, Any]) -> str:
    """A mapping's entry in YAML, without the last line's end; keys sorted, as finetuning-scheduler's are."""
    lines = [f'{_yaml_key(name)}: {_value(values[name])}' for name in sorted(values)]
    return '\n  '.join([f'{_yaml_key(key)}:', *lines]) if lines else f'{_yaml_key(key)}: {{}}'


def json_line(key: str, values: Mapping[str, Any]) -> str:
    """One object a line: the key, and what was read."""
    return f'{{"key": {json.dumps(key)}, {_value(values)[1:]}' if values else json.dumps({'key': key})


def plain_name(name: str) -> str:
    """A function's name as it may stand in that of a file: ``<lambda>`` is ``_lambda_``."""
    return re.sub(r'[^\w-]', '_', name, flags=re.ASCII)[:100] or '_'


def _yaml_key(name: str) -> str:
    is_plain = _PLAIN.fullmatch(name) and (not name[0].isdigit() or name.endswith(('.start', '.end')))
    return name if is_plain and name.lower() not in _OTHER_VALUES else json.dumps(name)


def _value(value: Any) -> str:
    # JSON is YAML too; what hooks of the user's have noted may be anything.
    return json.dumps(value, default=str)
