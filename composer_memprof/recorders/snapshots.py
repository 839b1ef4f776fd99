"""Writing a memory snapshot, of whichever recorder, as files that others read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

#: What torch's own snapshot viewer can read.
PICKLE_PROTOCOL = 4


def write_pickle(snapshot: dict[str, Any], path: Path) -> None:
    """Write the snapshot as a pickle of plain dicts, lists, strings and numbers."""
    with open(path, 'wb') as file:
        pickle.dump(snapshot, file, protocol=PICKLE_PROTOCOL)


def write_trace_plot(snapshot: dict[str, Any], path: Path) -> None:
    """Write torch's own page of the snapshot, which loads its JavaScript from the internet when opened."""
    from torch.cuda._memory_viz import trace_plot

    path.write_text(trace_plot(snapshot), encoding='utf-8')


def has_events(snapshot: dict[str, Any]) -> bool:
    return any(len(trace) > 0 for trace in snapshot['device_traces'])
