"""MemProfiler's readings as YAML and JSON lines, one entry at a time, so that the file can be read at any time."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_UNQUOTED = re.compile(r'[\w.]+', re.ASCII)
#: Words that YAML does not read as text.
_YAML_WORDS = frozenset({'null', 'true', 'false', 'yes', 'no', 'on', 'off', 'y', 'n'})


def yaml_entry(key: str, values: Mapping[str, Any]) -> str:
    """One entry of a YAML mapping, without a final newline. Keys are sorted, as in finetuning-scheduler's files."""
    lines = [f'{_yaml_key(name)}: {_yaml_value(values[name])}' for name in sorted(values)]
    return '\n  '.join([f'{_yaml_key(key)}:', *lines]) if lines else f'{_yaml_key(key)}: {{}}'


def json_line(key: str, values: Mapping[str, Any]) -> str:
    """One JSON object in one line: the key, then the values."""
    return _json({'key': key, **{name: _json_number(value) for name, value in values.items()}})


def file_name_part(function: str) -> str:
    """The function's name with characters that file names allow: ``_lambda_`` for ``<lambda>``."""
    return re.sub(r'[^\w-]', '_', function, flags=re.ASCII)[:100] or '_'


def _yaml_key(name: str) -> str:
    is_plain = _UNQUOTED.fullmatch(name) and (not name[0].isdigit() or name.endswith(('.start', '.end')))
    return name if is_plain and name.lower() not in _YAML_WORDS else _json(name)


def _json(value: Any) -> str:
    """The value as JSON, which is also YAML. A value that a user's hook set may have any type."""
    text = json.dumps(_json_number(value), default=str, ensure_ascii=False)
    return text.encode('utf-8', 'replace').decode()  # UTF-8 cannot hold a lone surrogate


def _json_number(value: Any) -> Any:
    """JSON has no infinite numbers and no NaN, so these become text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _yaml_value(value: Any) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return {math.inf: '.inf', -math.inf: '-.inf'}.get(value, '.nan')
        text = repr(value)
        return text if '.' in text or 'e' not in text else text.replace('e', '.0e')  # YAML reads 1e-05 as text
    return _json(value)
