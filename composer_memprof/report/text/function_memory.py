"""Readings of functions' memory as text, entry by entry, so that a file is whole at every moment."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r'[\w.]+', re.ASCII)
#: What YAML takes for another value than a text.
_OTHER_VALUES = frozenset({'null', 'true', 'false', 'yes', 'no', 'on', 'off', 'y', 'n'})


def yaml_entry(key: str, values: Mapping[str, Any]) -> str:
    """A mapping's entry in YAML, without the last line's end; keys sorted, as finetuning-scheduler's are."""
    lines = [f'{_yaml_key(name)}: {_yaml_value(values[name])}' for name in sorted(values)]
    return '\n  '.join([f'{_yaml_key(key)}:', *lines]) if lines else f'{_yaml_key(key)}: {{}}'


def json_line(key: str, values: Mapping[str, Any]) -> str:
    """One object a line: the key, and what was read."""
    return _value({'key': key, **{name: _finite(value) for name, value in values.items()}})


def plain_name(name: str) -> str:
    """A function's name as it may stand in that of a file: ``<lambda>`` is ``_lambda_``."""
    return re.sub(r'[^\w-]', '_', name, flags=re.ASCII)[:100] or '_'


def _yaml_key(name: str) -> str:
    is_plain = _PLAIN.fullmatch(name) and (not name[0].isdigit() or name.endswith(('.start', '.end')))
    return name if is_plain and name.lower() not in _OTHER_VALUES else _value(name)


def _value(value: Any) -> str:
    """In JSON, which YAML reads too; what hooks of the user's have noted may be anything."""
    text = json.dumps(_finite(value), default=str, ensure_ascii=False)
    return text.encode('utf-8', 'replace').decode()  # a lone surrogate is no text


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _yaml_value(value: Any) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return {math.inf: '.inf', -math.inf: '-.inf'}.get(value, '.nan')
        text = repr(value)
        return text if '.' in text or 'e' not in text else text.replace('e', '.0e')  # 1e-05 would be a text
    return _value(value)
