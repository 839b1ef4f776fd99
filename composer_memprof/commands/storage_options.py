"""The options of a store, as somebody types them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_SWITCHES = {'true': True, 'false': False}


def parse_storage_options(given: Iterable[str]) -> dict[str, Any]:
    """Each is a JSON object or ``key=value``; later ones win.

    >>> parse_storage_options(['anon=true', '{"client_kwargs": {"region_name": "eu-west-1"}}'])
    {'anon': True, 'client_kwargs': {'region_name': 'eu-west-1'}}

    Raises:
        ValueError: if one is neither. It does not quote it, since it may be a credential.
    """
    options: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition('=')
        if sign and name.isidentifier():
            options[name] = _SWITCHES.get(value, value)
            continue
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise ValueError('--storage-options must be key=value or a JSON object (what was given is not shown)')
        options |= parsed
    return options
