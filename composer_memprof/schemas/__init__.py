"""What ``--json`` prints: a version for each command, and a JSON Schema that the output keeps to.

Keys may be added at any time. A key that is removed, renamed or means something else raises the command's version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: The version of each command's output.
VERSIONS = {'check': 1, 'inspect': 1, 'plan': 1, 'report': 1, 'simulate': 1}


def versioned(command: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The output of a command with its version, which comes first.

    >>> versioned('plan', {'fits': True})
    {'version': 1, 'fits': True}
    """
    return {'version': VERSIONS[command], **values}


def schema(command: str) -> dict[str, Any]:
    """The JSON Schema of a command's output.

    >>> schema('plan')['properties']['version']
    {'const': 1}
    """
    found: dict[str, Any] = json.loads(Path(__file__).with_name(f'{command}.json').read_text(encoding='utf-8'))
    return found
