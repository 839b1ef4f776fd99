"""The purpose of allocations of FSDP2 and activation checkpointing, by the functions of torch on a call stack.

Both run inside of forward and backward passes, so the phase and the kind of the stack do not show the purpose.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from composer_memprof.analysis.snapshot.model import Frame, Stack

#: Codes of the purposes. ``REDUCTION`` is that of buffers and of the sharded gradients that are made from them.
OTHER, ALL_GATHER, UNSHARDED_PARAMETER, REDUCE_SCATTER, REDUCTION, UNSHARDED_GRADIENT, RECOMPUTATION = range(7)

#: The functions of a backend that allocate inside of a collective.
_COLLECTIVES = {'all_gather_into_tensor': ALL_GATHER, 'reduce_scatter_tensor': REDUCE_SCATTER}
_FSDP2 = ('/torch/distributed/fsdp/_fully_shard/', '/torch/distributed/_composable/fsdp/')
#: The purposes of functions, by the end of their file's path. Frames of other functions are ignored.
_FUNCTIONS = {
    '_fsdp_collectives.py': {
        'all_gather_copy_in': ALL_GATHER,
        'all_gather_copy_in_cuda': ALL_GATHER,
        'foreach_all_gather': ALL_GATHER,
        'foreach_all_gather_copy_out': ALL_GATHER,
        '_get_param_all_gather_inputs': ALL_GATHER,
        'foreach_reduce': REDUCTION,
    },
    '_fsdp_param.py': {
        'all_gather_inputs': ALL_GATHER,
        'init_all_gather_outputs': UNSHARDED_PARAMETER,
        'init_unsharded_param': UNSHARDED_PARAMETER,
        'alloc_all_gather_outputs': UNSHARDED_PARAMETER,
        'to_accumulated_grad_if_needed': UNSHARDED_GRADIENT,
    },
}
_CHECKPOINT = '/torch/utils/checkpoint.py'
#: The functions that call a checkpointed function again: the first for reentrant checkpoints, the others for all others.
_RECOMPUTES = ('backward', 'unpack_hook', 'recompute_fn')
#: A backward pass: frames around it do not count. It may run inside of a recomputation.
_BACKWARD = -1


def purposes(stacks: Sequence[Stack]) -> np.ndarray:
    """The purpose of each stack, int8: the purpose of its innermost frame with a purpose."""
    known: dict[Frame, int] = {}
    found = np.zeros(len(stacks), dtype=np.int8)
    for number, stack in enumerate(stacks):
        for frame in stack:
            purpose = known.get(frame)
            if purpose is None:
                purpose = known[frame] = _purpose(frame)
            if purpose == _BACKWARD:
                break
            if purpose != OTHER:
                found[number] = purpose
                break
    return found


def _purpose(frame: Frame) -> int:
    file = frame.filename.replace('\\', '/')
    if any(folder in file for folder in _FSDP2):
        return _FUNCTIONS.get(file.rpartition('/')[2], {}).get(frame.name, OTHER)
    if file.endswith('/torch/distributed/distributed_c10d.py'):
        return _COLLECTIVES.get(frame.name, OTHER)
    if file.endswith(_CHECKPOINT):
        return RECOMPUTATION if frame.name in _RECOMPUTES else OTHER
    if '/torch/autograd/' in file and 'backward' in frame.name:
        return _BACKWARD
    return OTHER
