"""The memory categories of module recordings, by the names of torch's trackers, in the order of the tables."""

from __future__ import annotations

from composer_memprof import vocabulary

_NAMES = {category.key: category.tracker for category in vocabulary.MEMORY_CATEGORIES}
PARAMETER = _NAMES[vocabulary.PARAMETER]
GRADIENT = _NAMES[vocabulary.GRADIENT]
BUFFER = _NAMES[vocabulary.BUFFER]
ACTIVATION = _NAMES[vocabulary.ACTIVATION]
TEMPORARY = _NAMES[vocabulary.TEMPORARY]
OPTIMIZER_STATE = _NAMES[vocabulary.OPTIMIZER_STATE]
INPUT = _NAMES[vocabulary.INPUT]
OTHER = _NAMES[vocabulary.UNKNOWN]
CATEGORIES = (PARAMETER, GRADIENT, BUFFER, ACTIVATION, TEMPORARY, OPTIMIZER_STATE, INPUT, OTHER)

# FSDP2 has these in place of parameters and gradients.
SHARDED_PARAMETER, UNSHARDED_PARAMETER = 'ShardedParam', 'UnshardedParam'
SHARDED_GRADIENT, UNSHARDED_GRADIENT = 'ShardedGrad', 'UnshardedGrad'
ALL_GATHER, REDUCE_SCATTER = 'AllGather', 'ReduceScatter'
FSDP2_CATEGORIES = (
    *(SHARDED_PARAMETER, UNSHARDED_PARAMETER, SHARDED_GRADIENT, UNSHARDED_GRADIENT, ALL_GATHER, REDUCE_SCATTER),
    *CATEGORIES[2:],
)
