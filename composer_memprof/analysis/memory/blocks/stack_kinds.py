"""The part of training that a call stack belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from composer_memprof.analysis.snapshot.model import Frame, Stack

#: Codes of the kinds. ``MODULE`` is the creation of a module or its move to a device. ``WORKSPACE`` is cuBLAS asking for
#: its workspace, ``AUTOCAST_COPY`` autocast copying an argument, ``AUTOCAST_EXIT`` its end, where it drops its copies.
UNKNOWN, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD, LOADER, MODULE, WORKSPACE, AUTOCAST_COPY, AUTOCAST_EXIT = range(10)
#: Kind of a trainer's frame: the frames around it do not count.
_TRAINER = -1

_MAKES_MODULES = ('__init__', 'reset_parameters', '_apply', 'convert', 'to_empty', '__deepcopy__')
#: Files in the folders of modules and optimizers that are part of neither.
_NEITHER = ('/torch/nn/parallel/distributed.py', '/torch/optim/swa_utils.py', '/torch/optim/lr_scheduler.py')


def stack_kinds(stacks: Sequence[Stack]) -> np.ndarray:
    """The kind of each stack, int8: the kind of its innermost frame with a kind.

    Composer runs forward and backward inside the optimizer's step, so frames outside its training step do not count.
    Nor does an optimizer around a closure: only its own ``step``, in torch or not, is the optimizer's work.
    """
    known: dict[Frame, int] = {}
    kinds = np.zeros(len(stacks), dtype=np.int8)
    for number, stack in enumerate(stacks):
        called: Frame | None = None
        for frame in stack:
            kind = known.get(frame)
            if kind is None:
                kind = known[frame] = _kind(frame)
            if kind == _TRAINER or (kind == OPTIMIZER and _is_closure(called)):
                break
            if kind != UNKNOWN:
                kinds[number] = kind
                break
            if frame.filename.endswith('.py'):
                called = frame
        else:
            if stack and _is_custom_function(stack[-1]):
                kinds[number] = BACKWARD  # autograd's threads call nothing else that is Python
    return kinds


def _is_custom_function(outermost: Frame) -> bool:
    return outermost.name == 'apply' and outermost.filename.endswith('/torch/autograd/function.py')


def _is_closure(called: Frame | None) -> bool:
    """True if a frame that an optimizer called is not its own."""
    return called is not None and called.name != 'step' and '/torch/' not in called.filename.replace('\\', '/')


def _kind(frame: Frame) -> int:
    name, file = frame.name, frame.filename.replace('\\', '/')
    if name == 'zero_grad' or name.endswith('::zero_grad'):
        return ZERO_GRAD
    if not file.endswith('.py'):
        if name.startswith('at::cuda::') and ('Workspace' in name or 'CUDABlasHandle' in name):
            return WORKSPACE
        if name.startswith('at::autocast::cached_cast'):
            return AUTOCAST_COPY
        return BACKWARD if 'torch::autograd::Engine' in name or 'autograd::python::PythonEngine' in name else UNKNOWN
    if file.endswith(_NEITHER) or '/torch/nn/utils/' in file:
        return UNKNOWN
    if '/torch/optim/' in file:
        return OPTIMIZER
    if file.endswith('composer/trainer/trainer.py') and name.startswith('_train_microbatch'):
        return _TRAINER
    if '/torch/autograd/' in file:
        return BACKWARD if 'backward' in name else UNKNOWN
    if '/torch/_tensor.py' in file and name == 'backward':
        return BACKWARD
    if file.endswith('/torch/amp/autocast_mode.py'):
        return AUTOCAST_EXIT if name == '__exit__' else UNKNOWN
    if '/torch/utils/data/' in file:
        return LOADER
    if '/torch/nn/' in file:
        moves = name == '<lambda>' and file.endswith('/torch/nn/modules/module.py')
        if moves or name in _MAKES_MODULES or '/torch/nn/init.py' in file:
            return MODULE
        return FORWARD
    return UNKNOWN
