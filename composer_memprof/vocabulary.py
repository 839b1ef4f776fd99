"""The words that recordings, files, tables and pages share: the phases of training, and what memory is for.

Each word stands once, here; a name in a file or a page is one of these constants. Imports nothing, so that every room
can use it.
"""

from __future__ import annotations

from dataclasses import dataclass

# -- phases ---------------------------------------------------------------------------------------------------------

START = 'start'
DATALOADER = 'dataloader'
FORWARD = 'forward'
BACKWARD = 'backward'
OPTIMIZER = 'optimizer'
CHECKPOINT = 'checkpoint'
EVAL = 'eval'
BETWEEN_PHASES = 'between phases'
BETWEEN_BATCHES = 'between batches'

#: Every phase that a recording can name, in the order of a batch.
PHASES = (
    START,
    DATALOADER,
    FORWARD,
    BACKWARD,
    OPTIMIZER,
    BETWEEN_PHASES,
    CHECKPOINT,
    EVAL,
    BETWEEN_BATCHES,
)

#: In pages. Phases that are not here have ``UNKNOWN_COLOR``.
PHASE_COLORS = {
    FORWARD: '#4c78a8',
    BACKWARD: '#e59641',
    OPTIMIZER: '#54a24b',
    DATALOADER: '#cc5c5c',
    EVAL: '#7e68b0',
    CHECKPOINT: '#45ada8',
}
UNKNOWN_COLOR = '#969ca6'


# -- what memory is for ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryCategory:
    """One purpose of memory, under each of its names.

    Args:
        key (str): in snapshots, ``.summary.json`` and the data of pages.
        label (str): for people.
        tracker (str): in ``FSDPMemTracker``'s files, as torch's ``MemTracker`` calls it; ``''`` where it has none.
        color (str): in pages, the same in all of them.
    """

    key: str
    label: str
    tracker: str
    color: str


MEMORY_CATEGORIES = (
    MemoryCategory('parameter', 'parameter', 'Parameter', '#4878a8'),
    MemoryCategory('buffer', 'buffer', 'Buffer', '#9ecae1'),
    MemoryCategory('gradient', 'gradient', 'Gradient', '#e49444'),
    MemoryCategory('optimizer_state', 'optimizer state', 'OptState', '#85b6b2'),
    MemoryCategory('activation', 'activation', 'Activation', '#d1615d'),
    MemoryCategory('input', 'input', 'Inputs', '#6a9f58'),
    MemoryCategory('temporary', 'temporary', 'Temp', '#e7ca60'),
    MemoryCategory('unknown', 'unknown', 'Other', '#a0a0a0'),
)
CATEGORY_KEYS = tuple(category.key for category in MEMORY_CATEGORIES)
#: torch's profiler alone tells this one from activations.
AUTOGRAD_DETAIL = MemoryCategory('autograd_detail', 'autograd detail', '', '#a87c9f')
