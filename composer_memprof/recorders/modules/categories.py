"""The memory categories of module recordings, by the names of torch's trackers, in the order of the tables."""

from __future__ import annotations

from composer_memprof.vocabulary import MEMORY_CATEGORIES

_NAMES = {category.key: category.tracker for category in MEMORY_CATEGORIES}
PARAMETER, GRADIENT, BUFFER = _NAMES['parameter'], _NAMES['gradient'], _NAMES['buffer']
ACTIVATION, TEMPORARY, OPTIMIZER_STATE = _NAMES['activation'], _NAMES['temporary'], _NAMES['optimizer_state']
INPUT, OTHER = _NAMES['input'], _NAMES['unknown']
CATEGORIES = (PARAMETER, GRADIENT, BUFFER, ACTIVATION, TEMPORARY, OPTIMIZER_STATE, INPUT, OTHER)

# FSDP2 has these in place of parameters and gradients.
SHARDED_PARAMETER, UNSHARDED_PARAMETER = 'ShardedParam', 'UnshardedParam'
SHARDED_GRADIENT, UNSHARDED_GRADIENT = 'ShardedGrad', 'UnshardedGrad'
ALL_GATHER, REDUCE_SCATTER = 'AllGather', 'ReduceScatter'
FSDP2_CATEGORIES = (
    *(SHARDED_PARAMETER, UNSHARDED_PARAMETER, SHARDED_GRADIENT, UNSHARDED_GRADIENT, ALL_GATHER, REDUCE_SCATTER),
    *CATEGORIES[2:],
)
