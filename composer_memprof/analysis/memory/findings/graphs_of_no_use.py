"""The activations of modules that no gradient reaches, found by the lines that call them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

import numpy as np

from composer_memprof.analysis.memory.categories.categories import CATEGORIES
from composer_memprof.analysis.memory.findings.attribution import Attribution
from composer_memprof.analysis.snapshot.model import Frame, Snapshot
from composer_memprof.vocabulary import ACTIVATION


@dataclass(frozen=True)
class GraphOfNoUse:
    """A module that is not trained, and what autograd keeps of its forward.

    Args:
        module (str): its name.
        bytes (int): of the activations that were allocated inside of its call.
        line (Frame): that calls it.
    """

    module: str
    bytes: int
    line: Frame


def graphs_of_no_use(snapshot: Snapshot, attribution: Attribution, live: np.ndarray) -> list[GraphOfNoUse]:
    """Those of the ``live`` blocks, largest first."""
    blocks = attribution.blocks
    kept = live[attribution.categories.category[live] == CATEGORIES.index(ACTIVATION)]
    size_of = np.bincount(blocks.stack[kept], weights=blocks.size[kept], minlength=len(snapshot.stacks))
    found: list[GraphOfNoUse] = []
    for module in snapshot.without_gradient:
        called = re.compile(rf'\.{re.escape(module.rpartition(".")[2])}\b[\w.]*\(')
        total, line = 0, None
        for stack in np.flatnonzero(size_of).tolist():
            frame = _first_called(snapshot, stack, called)
            if frame is not None:
                total, line = total + int(size_of[stack]), frame
        if line is not None:
            found.append(GraphOfNoUse(module, total, line))
    return sorted(found, key=lambda each: -each.bytes)


def _first_called(snapshot: Snapshot, stack: int, called: re.Pattern[str]) -> Optional[Frame]:
    """The innermost frame of a stack whose line calls the module; its own ``__init__`` does not."""
    for frame in snapshot.stacks[stack]:
        text = snapshot.sources.get(f'{frame.filename}:{frame.line}', '')
        if text and called.search(text) and not text.startswith('def '):
            return frame
    return None
