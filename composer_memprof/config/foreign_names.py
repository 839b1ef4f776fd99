"""The code that a config names beside the names that every config may use: it is imported and called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: The sections that map names to their arguments. Each of the others has one ``name``.
_NAMES_AS_KEYS = ('callbacks', 'loggers', 'algorithms')
_NAMED = ('model', 'train_loader', 'eval_loader', 'optimizer', 'scheduler')


def foreign_names(config: Mapping[str, Any]) -> list[str]:
    """The dotted paths in a config that was loaded, each once: :func:`build_trainer` imports and calls them.

    >>> foreign_names({'model': {'name': 'subprocess.run'}, 'train_loader': 'text_files', 'callbacks': {'lr_monitor': None}})
    ['subprocess.run']
    """
    return list(dict.fromkeys(name for name in _names(config) if '.' in name))


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    for key in _NAMES_AS_KEYS:
        section = config.get(key)
        if isinstance(section, Mapping):
            yield from map(str, section)
    for key in _NAMED:
        section = config.get(key)
        name = section.get('name') if isinstance(section, Mapping) else section
        if isinstance(name, str):
            yield name
