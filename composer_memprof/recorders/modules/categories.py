"""The memory categories of module recordings."""

from __future__ import annotations

CATEGORIES = ('Parameter', 'Gradient', 'Buffer', 'Activation', 'Temp', 'OptState', 'Inputs', 'Other')
FSDP2_CATEGORIES = (
    *('ShardedParam', 'UnshardedParam', 'ShardedGrad', 'UnshardedGrad', 'AllGather', 'ReduceScatter'),
    *CATEGORIES[2:],
)
