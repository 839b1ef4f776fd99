"""Writing a memory snapshot of any recorder as a pickle that other tools read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

#: The newest that torch's snapshot viewer reads.
PICKLE_PROTOCOL = 4


def write_pickle(snapshot: dict[str, Any], path: Path) -> None:
    """Write the snapshot, a dict of plain dicts, lists, strings and numbers."""
    with open(path, 'wb') as file:
        pickle.dump(snapshot, file, protocol=PICKLE_PROTOCOL)
