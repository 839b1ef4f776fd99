"""Names that recorders, files, tables and pages share: the phases of training and the categories of memory.

Imports nothing of this package, so that every part of it can use these names.
"""

from __future__ import annotations

from dataclasses import dataclass

# -- phases of training ---------------------------------------------------------------------------------------------

START = 'start'
DATALOADER = 'dataloader'
FORWARD = 'forward'
BACKWARD = 'backward'
OPTIMIZER = 'optimizer'
CHECKPOINT = 'checkpoint'
EVAL = 'eval'
EVAL_FORWARD = 'eval forward'
PREDICT = 'predict'
PREDICT_FORWARD = 'predict forward'
BETWEEN_PHASES = 'between phases'
BETWEEN_BATCHES = 'between batches'

#: All phases, in the order of a batch.
PHASES = (
    START,
    DATALOADER,
    FORWARD,
    BACKWARD,
    OPTIMIZER,
    BETWEEN_PHASES,
    CHECKPOINT,
    EVAL,
    EVAL_FORWARD,
    PREDICT,
    PREDICT_FORWARD,
    BETWEEN_BATCHES,
)
#: What a batch of training does, in order, once it has its data.
WITHIN_BATCH = (FORWARD, BACKWARD, OPTIMIZER)
#: The forward of each stage.
FORWARDS = (FORWARD, EVAL_FORWARD, PREDICT_FORWARD)

#: In pages: bright, where those of categories are muted, since both are in one picture. Phases that are not here have ``UNKNOWN_COLOR``.
PHASE_COLORS = {
    FORWARD: '#7c4dff',
    BACKWARD: '#f0288a',
    OPTIMIZER: '#00a8c6',
    DATALOADER: '#8bb800',
    EVAL: '#4a2bb0',
    EVAL_FORWARD: '#7c4dff',
    PREDICT: '#4a2bb0',
    PREDICT_FORWARD: '#7c4dff',
    CHECKPOINT: '#00796b',
}
UNKNOWN_COLOR = '#969ca6'


# -- changes that lower a peak: a report advises them, and a plan tries them -------------------------------------------

CHECKPOINT_BLOCKS = 'checkpoint blocks'
SHARD = 'shard'
DROP_OUTPUTS = 'drop outputs'


# -- lines of code ---------------------------------------------------------------------------------------------------

#: After a line: the collective call that it makes.
IN_COLLECTIVE = ', in torch.distributed.'


# -- what keeps a tensor alive ----------------------------------------------------------------------------------------

#: The beginning of what keeps a tensor, its end, and the words for a container that never grows beyond its limit.
IN_CYCLE = 'a reference cycle: '
WITH_GRAPH = ', with its graph'
AT_MOST = ' of at most '


# -- categories of memory -------------------------------------------------------------------------------------------

PARAMETER = 'parameter'
BUFFER = 'buffer'
GRADIENT = 'gradient'
OPTIMIZER_STATE = 'optimizer_state'
ACTIVATION = 'activation'
RECOMPUTED = 'recomputed_activation'
UNSHARDED_PARAMETER = 'unsharded_parameter'
UNSHARDED_GRADIENT = 'unsharded_gradient'
ALL_GATHER = 'all_gather'
REDUCE_SCATTER = 'reduce_scatter'
INPUT = 'input'
TEMPORARY = 'temporary'
WORKSPACE = 'workspace'
AUTOCAST_COPY = 'autocast_copy'
KEPT = 'kept_after_batch'
UNKNOWN = 'unknown'


@dataclass(frozen=True)
class MemoryCategory:
    """A category and its names.

    Args:
        key (str): in snapshots, ``.summary.json`` and the data of pages.
        label (str): in tables and pages.
        tracker (str): in ``FSDPMemTracker``'s files, from torch's ``MemTracker``; ``''`` if it has none.
        color (str): in pages.
    """

    key: str
    label: str
    tracker: str
    color: str


MEMORY_CATEGORIES = (
    MemoryCategory(PARAMETER, 'parameter', 'Parameter', '#4878a8'),
    MemoryCategory(BUFFER, 'buffer', 'Buffer', '#9ecae1'),
    MemoryCategory(GRADIENT, 'gradient', 'Gradient', '#e49444'),
    MemoryCategory(OPTIMIZER_STATE, 'optimizer state', 'OptState', '#85b6b2'),
    MemoryCategory(ACTIVATION, 'activation', 'Activation', '#d1615d'),
    MemoryCategory(RECOMPUTED, 'recomputed activation', '', '#e8a5a2'),
    MemoryCategory(UNSHARDED_PARAMETER, 'unsharded parameter', 'UnshardedParam', '#2c4a6e'),
    MemoryCategory(UNSHARDED_GRADIENT, 'unsharded gradient', 'UnshardedGrad', '#a8641d'),
    MemoryCategory(ALL_GATHER, 'all-gather buffer', 'AllGather', '#b07aa1'),
    MemoryCategory(REDUCE_SCATTER, 'reduce-scatter buffer', 'ReduceScatter', '#d7b5a6'),
    MemoryCategory(INPUT, 'input', 'Inputs', '#6a9f58'),
    MemoryCategory(TEMPORARY, 'temporary', 'Temp', '#e7ca60'),
    MemoryCategory(WORKSPACE, 'cuBLAS workspace', '', '#b6992d'),
    MemoryCategory(AUTOCAST_COPY, 'autocast copy', '', '#d7a5c6'),
    MemoryCategory(KEPT, 'kept after its batch', '', '#7a6bb0'),
    MemoryCategory(UNKNOWN, 'unknown', 'Other', '#a0a0a0'),
)
#: In this order a category's number in a column stands for its key.
CATEGORY_KEYS = tuple(category.key for category in MEMORY_CATEGORIES)
CATEGORY_LABELS = {category.key: category.label for category in MEMORY_CATEGORIES}
#: The categories of tensors whose addresses a recorder notes, in the order of their numbers.
TENSOR_CATEGORIES = (PARAMETER, BUFFER, GRADIENT, OPTIMIZER_STATE, INPUT, UNSHARDED_PARAMETER, UNSHARDED_GRADIENT)
#: Only torch's profiler separates this category from activations.
AUTOGRAD_DETAIL = MemoryCategory('autograd_detail', 'autograd detail', '', '#a87c9f')
