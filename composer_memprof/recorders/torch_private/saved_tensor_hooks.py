"""Saved-tensor hooks: the stack of pairs on this thread, their switch, and code that torch.compile leaves alone."""

from __future__ import annotations

from typing import Any

import torch

from composer_memprof.recorders.torch_private import is_found, private, private_attribute

#: ``(pack, unpack)``: enters a pair of hooks.
push_hooks = private('torch._C._autograd._push_saved_tensors_default_hooks', module=__name__)
#: ``()``: leaves the innermost pair.
pop_hooks = private('torch._C._autograd._pop_saved_tensors_default_hooks', module=__name__)
#: ``()``: True unless hooks are switched off.
hooks_are_enabled = private('torch._C._autograd._saved_tensors_hooks_is_enabled', module=__name__)
#: ``(message)``: switches hooks off. Raises RuntimeError where hooks are active, and switches them off all the same.
disable_hooks = private('torch._C._autograd._saved_tensors_hooks_disable', module=__name__)
#: ``()``: switches hooks on again.
enable_hooks = private('torch._C._autograd._saved_tensors_hooks_enable', module=__name__)

_skip_code = private('torch._dynamo.eval_frame.skip_code', module=__name__)
for _attribute in ('pack_hook', 'unpack_hook'):
    private_attribute(
        f'torch.autograd.graph.saved_tensors_hooks.{_attribute}',
        module=__name__,
        owner=lambda: torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, torch.Tensor.detach),
    )


def push_pair(pair: Any) -> None:
    """Enter the hooks of an existing ``torch.autograd.graph.saved_tensors_hooks`` again."""
    push_hooks(pair.pack_hook, pair.unpack_hook)


def hooks_are_active() -> bool:
    """True if this thread has saved-tensor hooks. They can be switched off only where there are none."""
    if not hooks_are_enabled():
        return False
    try:
        disable_hooks('composer_memprof checks whether there are hooks')
    except RuntimeError:
        return True
    finally:
        enable_hooks()
    return False


def never_compile(*owners: Any) -> None:
    """Keep torch.compile from tracing functions, or the methods of classes, that autograd calls in compiled code."""
    if not is_found(_skip_code):  # its absence is reported where the recorder starts, and must not break an import
        return
    for owner in owners:
        for function in vars(owner).values() if isinstance(owner, type) else (owner,):
            if hasattr(function, '__code__'):
                _skip_code(function.__code__)
