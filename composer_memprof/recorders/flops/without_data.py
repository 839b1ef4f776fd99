"""Count a step of a compiled model on an uncompiled copy whose tensors have shapes but no data.

What compiled code computes can't be seen operator by operator, and running the model uncompiled would change its
numbers. The copy takes neither memory nor kernels, and leaves the model as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from composer_memprof.recorders import dispatch
from composer_memprof.recorders.flops.recorder import FlopsRecorder
from composer_memprof.recorders.flops.result import BatchFlops
from composer_memprof.recorders.torch_private import (
    compilation,
    dispatch_modes,
    fake_tensors,
    flop_formulas,
    module_hooks,
)
from composer_memprof.recorders.torch_private.tensors import FLATTEN

#: The modules of ``torch_private`` that this needs.
NEEDS = (*dispatch.NEEDS, compilation, dispatch_modes, fake_tensors, flop_formulas, module_hooks)


def count_without_data(model: nn.Module, batch: Any, step: Callable[[nn.Module, Any], Any]) -> BatchFlops:
    """The FLOPs of ``step(model, batch)``, counted in a process that computes nothing else afterwards.

    The step draws random numbers, and tensors without data stay in whatever the model's code keeps outside of the model.

    >>> model = torch.compile(torch.nn.Linear(4, 2))
    >>> count_without_data(model, torch.ones(3, 4), lambda model, batch: backward(model, model(batch).sum())).batch_flops
    96

    Args:
        model (Module): as it is trained; compiled, and wrapped for data parallelism or not.
        batch (Any): tensors, in any nesting of lists, tuples and dicts.
        step (Callable): runs forward, and :func:`backward`, on the copy of the model and of the batch that it is given.

    Raises:
        ValueError: for a model of which no such copy can be made.
        Exception: of the model, for example if it reads the values of its tensors.
    """
    if isinstance(model, DistributedDataParallel):
        model = model.module
    with ExitStack() as stack:
        stack.enter_context(dispatch_modes.disable_current_modes())  # of other recorders, which record the real model
        stack.enter_context(saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor))
        stack.enter_context(torch.compiler.set_stance('force_eager'))
        fakes = fake_tensors.FakeTensorMode(allow_non_fake_inputs=True)
        twin = _copy_of(model, fakes)
        batch = flop_formulas.tree_map(lambda value: _without_data(value, fakes), batch)
        recorder = FlopsRecorder(twin)
        with fakes, _NoCollectives(), dispatch.listening_alone(recorder):
            step(twin, batch)
        return recorder.stop()


def backward(model: nn.Module, loss: torch.Tensor) -> None:
    """``loss.backward()`` for the parameters of ``model`` alone."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torch.autograd.backward(loss, inputs=trained)


class _NoCollectives(dispatch_modes.TorchDispatchMode):
    """Refuses communication: the other ranks do not take part in the count."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if 'c10d' in getattr(func, 'namespace', ''):
            raise ValueError(f'the model communicates between ranks ({func})')
        return func(*args, **(kwargs or {}))


class _CopiesWithoutData(TorchFunctionMode):
    """Gives ``deepcopy`` a tensor without data for each one that it finds, registered with a module or not."""

    def __init__(self, fakes: Any) -> None:
        super().__init__()
        self._fakes = fakes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, copies = args
            return copies.setdefault(id(tensor), _without_data(tensor, self._fakes))
        if func is torch.Tensor.clone:  # of a parameter that is in a list or dict
            return _without_data(args[0], self._fakes)
        return func(*args, **(kwargs or {}))


def _without_data(value: Any, fakes: Any) -> Any:
    return fakes.from_tensor(value) if isinstance(value, torch.Tensor) else value


def _copy_of(model: nn.Module, fakes: Any) -> nn.Module:
    """A copy without data, hooks and compilation."""
    copies: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        if hasattr(type(tensor), FLATTEN):
            raise ValueError(f'its parameters are sharded ({type(tensor).__name__})')
        copies[id(tensor)] = _without_data(tensor, fakes)
    for module in model.modules():
        if type(module).__module__.startswith('torch.distributed'):
            raise ValueError(f'it contains a {type(module).__name__}, which communicates between ranks')
        for hooks in module_hooks.all_hooks(module):  # may belong to anyone, and would see the copy
            copies[id(hooks)] = type(hooks)()
        _check_forward(module)
    with _CopiesWithoutData(fakes):
        twin = copy.deepcopy(model, copies)
    twins = dict(zip(map(id, model.modules()), twin.modules()))
    for module, other in zip(model.modules(), twin.modules()):
        compilation.forget_compiled_call(other)
        original = _uncompiled_forward(module)
        if original is not None:
            other.forward = MethodType(original.__func__, twins[id(original.__self__)])
    return twin


def _check_forward(module: nn.Module) -> None:
    """Refuse a forward that would run on the model itself instead of on its copy."""
    forward = _uncompiled_forward(module) or vars(module).get('forward')
    copies_itself = compilation.is_compiled_wrapper(module)
    if forward is not None and not isinstance(forward, MethodType) and not copies_itself:
        raise ValueError(f'the forward of a {type(module).__name__} was replaced by {forward!r}')


def _uncompiled_forward(module: nn.Module) -> Any:
    """The method that ``torch.compile`` was used on, if it was used on this module's forward."""
    forward = vars(module).get('forward')
    if forward is None or compilation.is_compiled_wrapper(module) or not compilation.is_compiled_function(forward):
        return None
    return compilation.uncompiled(forward)
