"""Writes text and JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding='utf-8')


def write_json(document: Mapping[str, Any], path: Path) -> None:
    """Write one JSON object, as one line."""
    write_text(json.dumps(document, separators=(',', ':')) + '\n', path)
