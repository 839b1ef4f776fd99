"""What FSDP2 and activation checkpointing allocate for, by the functions of torch on a call stack.

A forward or backward pass runs them inside, so the phase and the kind of the stack do not tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from composer_memprof.analysis.snapshot.model import Frame, Stack

#: Codes of the purposes. ``REDUCTION`` is that of buffers and of the sharded gradients that are made from them.
OTHER, ALL_GATHER, UNSHARDED_PARAMETER, REDUCE_SCATTER, REDUCTION, UNSHARDED_GRADIENT, RECOMPUTATION = range(7)

#: What a backend allocates inside of a collective.
_COLLECTIVES = {'all_gather_into_tensor': ALL_GATHER, 'reduce_scatter_tensor': REDUCE_SCATTER}
_FSDP2 = ('/torch/distributed/fsdp/_fully_shard/', '/torch/distributed/_composable/fsdp/')
#: By the end of the file's path, the purpose of its functions; functions that are not here are passed over.
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
#: What calls a checkpointed function again: of the reentrant variant, and of the other.
_RECOMPUTES = ('backward', 'unpack_hook', 'recompute_fn')
#: A backward pass: frames around it do not count. It may run inside of a recomputation.
_BACKWARD = -1


def purposes(stacks: Sequence[Stack]) -> np.ndarray:
    """The purpose of each stack, int8: that of the innermost frame that has one."""
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
