"""What torch does on this process's training threads, told to listeners: operations, resizes, modules entered and left.

One dispatch mode serves all listeners, whatever the order in which they come and go, and nothing of it is left when
the last one has gone. Whatever a listener raises is kept from the training; that listener hears nothing further.

The private parts of torch that this needs stand here, each in a function of its own. Checked with torch 2.7.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any, Optional, Protocol

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode


class Listener(Protocol):
    """Who is told. ``failed`` comes once, with what another method has raised."""

    def operated(self, operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None: ...

    def resized(self, storage: torch.UntypedStorage) -> None: ...

    def entered(self, module: torch.nn.Module) -> None: ...

    def left(self, module: torch.nn.Module) -> None: ...

    def failed(self, error: Exception) -> None: ...


def in_backward() -> bool:
    """Whether this thread runs a backward pass."""
    return torch._C._current_graph_task_id() != -1


def backward_sequence_number() -> Optional[int]:
    """Of the backward node that runs now: what :func:`next_sequence_number` gave just before its forward operation."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()  # type: ignore[attr-defined]


def next_sequence_number() -> int:
    """That the next operation recorded for a backward pass will get."""
    return torch._C._autograd._get_sequence_nr()  # type: ignore[attr-defined]


def foreign_tracker() -> Optional[str]:
    """The name of a memory tracker of torch's own that is active on this thread."""
    theirs = getattr(sys.modules.get('torch.distributed._tools.mem_tracker'), 'MemTracker', None)
    for mode in _python_dispatch._get_current_dispatch_mode_stack():
        if theirs is not None and isinstance(mode, theirs):
            return f'{type(mode).__module__}.{type(mode).__qualname__}'
    return None


def _take_off_the_stack(mode: TorchDispatchMode) -> None:
    """Leave ``mode``, though another that was entered later may still be active."""
    above = []
    while mode in _python_dispatch._get_current_dispatch_mode_stack():
        top = _python_dispatch._get_current_dispatch_mode()
        if top is not mode:
            above.append(_python_dispatch._pop_mode())
        elif not above:
            mode.__exit__(None, None, None)
        else:
            _python_dispatch._pop_mode()
            _inherit_flags(above[-1], mode)
    for other in reversed(above):
        _python_dispatch._push_mode(other)


def _inherit_flags(above: Any, mode: Any) -> None:
    """Each mode puts back, when it ends, whether there was another below it; without ``mode`` that is what it found.

    A flag left on would keep torch.compile from compiling anything from then on.
    """
    for flags in ('old_dispatch_mode_flags', 'old_non_infra_dispatch_mode_flags'):
        getattr(above, flags)[-1] = getattr(mode, flags).pop()


def _compile_nothing() -> Callable[[], None]:
    """What is compiled already runs so meanwhile; what is not, runs as it was written.

    Under a dispatch mode torch.compile would give up on a function that it meets for the first time, for good.
    """
    ours = 'eager_on_recompile'
    stance = torch.compiler.set_stance(ours)

    def undo() -> None:
        if torch._dynamo.eval_frame._stance.stance == ours:  # not where the user has chosen another meanwhile
            stance.__exit__(None, None, None)

    return undo


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Listener] = []
        self._undo: list[Callable[[], None]] = []

    def add(self, listener: Listener) -> None:
        if not self._undo:
            self._begin()
        self.listeners = [*self.listeners, listener]

    def remove(self, listener: Listener) -> None:
        self.listeners = [other for other in self.listeners if other is not listener]
        if not self.listeners and self._undo:  # also where it was left out already, because it had failed
            self._end()

    def _begin(self) -> None:
        # Global hooks: the model's own are not touched, not even their order.
        hooks = [
            register_module_forward_pre_hook(lambda module, args: self._tell('entered', module)),
            register_module_forward_hook(lambda module, args, output: self._tell('left', module), always_call=True),
        ]
        self._undo = [hook.remove for hook in hooks]
        self._undo.append(self._patch_resize())
        self._undo.append(self._let_pass())
        self._undo.append(_compile_nothing())
        self.__enter__()

    def _end(self) -> None:
        undo, self._undo = self._undo, []
        with contextlib.ExitStack() as stack:  # each, whatever becomes of the others
            stack.callback(_take_off_the_stack, self)
            for each in reversed(undo):
                stack.callback(each)

    def _patch_resize(self) -> Callable[[], None]:
        """A storage is resized past the dispatcher; FSDP2 frees and allocates what it gathers so."""
        own = 'resize_' in vars(torch.UntypedStorage)
        original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            self._tell('resized', storage)
            return result

        def undo() -> None:
            if torch.UntypedStorage.resize_ is resize_:
                if own:
                    torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]
                else:
                    del torch.UntypedStorage.resize_

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        return undo

    def _let_pass(self) -> Callable[[], None]:
        """Operators of higher order (flex attention) raise under a mode that they have no rule for. Checked on 2.7."""
        tables = [
            (operator, operator.python_key_table)
            for operator in torch._ops._higher_order_ops.values()
            if _Watch not in operator.python_key_table
        ]
        for operator, table in tables:
            table[_Watch] = functools.partial(self._higher_order, operator)

        def undo() -> None:
            for _, table in tables:
                table.pop(_Watch, None)

        return undo

    def _higher_order(self, operator: Any, mode: Any, *args: Any, **kwargs: Any) -> Any:
        result = operator(*args, **kwargs)
        self._tell('operated', operator, args, kwargs, result)
        return result

    def _tell(self, what: str, *words: Any) -> None:
        for listener in self.listeners:
            try:
                getattr(listener, what)(*words)
            except Exception as error:  # it is the user's forward or backward that runs here
                self.listeners = [other for other in self.listeners if other is not listener]
                listener.failed(error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for kind in types:
            if hasattr(kind, '__tensor_flatten__'):
                # A wrapper (DTensor): let it run first; the operations on what it wraps come here in their turn.
                return NotImplemented
        keywords = kwargs or {}
        result = func(*args, **keywords)
        for listener in self.listeners:
            try:
                listener.operated(func, args, keywords, result)
            except Exception as error:
                self.listeners = [other for other in self.listeners if other is not listener]
                listener.failed(error)
        return result


_watch = _Watch()


def listen(listener: Listener) -> None:
    """Tell ``listener`` from now on."""
    _watch.add(listener)


def stop_listening(listener: Listener) -> None:
    """Tell it no more. With the last listener, hooks and dispatch mode go too."""
    _watch.remove(listener)
