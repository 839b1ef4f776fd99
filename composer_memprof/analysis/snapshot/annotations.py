"""Reading the ranges of the program that torch notes in a snapshot, from a file that is not trusted.

From torch 2.6 on ``external_annotations`` has a mapping for the start and one for the end of each
``torch.profiler.record_function``, of which torch itself makes ``Optimizer.step#AdamW.step``,
``Optimizer.zero_grad#AdamW.zero_grad`` and ``enumerate(DataLoader)#…``. The format is torch's own and may change, so rows
of another form are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from composer_memprof.analysis.snapshot.model import Annotations
from composer_memprof.analysis.snapshot.untrusted import LARGEST
from composer_memprof.messages import printable

#: Most characters of a name.
_MOST_LETTERS = 200


def read_annotations(snapshot: dict[str, Any]) -> Annotations:
    """The ranges of an unpickled snapshot, in order of their start; empty if it has none."""
    rows = snapshot.get('external_annotations')
    names: dict[str, int] = {}
    found: list[tuple[int, int, int]] = []
    open_since: dict[int, list[int]] = {}
    for row in rows if type(rows) is list else []:
        if type(row) is not dict:
            continue
        stage, name, time_us = row.get('stage'), row.get('name'), row.get('time_us')
        if type(name) is not str or type(time_us) is not int or not 0 <= time_us <= LARGEST:
            continue
        code = names.setdefault(printable(name[:_MOST_LETTERS]), len(names))
        begun = open_since.setdefault(code, [])
        if stage == 'START':
            begun.append(time_us)
        elif stage == 'END':
            found.append((begun.pop() if begun else 0, time_us, code))  # else it began before the recording
    found += [(begin, LARGEST, code) for code, begun in open_since.items() for begin in begun]
    columns = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
    return Annotations(columns[:, 0], columns[:, 1], columns[:, 2], list(names))
