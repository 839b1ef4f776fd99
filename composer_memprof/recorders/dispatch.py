"""Observe what torch runs on this process's training threads: operations, resized storages, modules' forwards.

One dispatch mode serves all listeners, in whatever order they are added and removed; the last one removed takes the
mode and all hooks with it. A listener that raises is removed, and the training never sees its error.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Optional, Protocol

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from composer_memprof.recorders.torch_private import compilation, dispatch_modes, graph_tasks, operators, tensors
from composer_memprof.recorders.torch_private.dispatch_modes import active_memory_tracker as foreign_tracker
from composer_memprof.recorders.torch_private.graph_tasks import in_backward
from composer_memprof.recorders.torch_private.operators import RULES_BY_MODE
from composer_memprof.recorders.torch_private.tensors import FLATTEN
from composer_memprof.signals import holds_signals
from composer_memprof.simulated_gpu import in_modes

__all__ = ['NEEDS', 'OperationListener', 'foreign_tracker', 'in_backward', 'listen', 'stop_listening']

#: The modules of ``torch_private`` that this needs.
NEEDS = (dispatch_modes, graph_tasks, operators, compilation, tensors)


class OperationListener(Protocol):
    """Is called after each operation and resize, and as a module's forward begins and ends.

    ``failed`` is called once, with the error of another method.
    """

    def operated(self, operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None: ...

    def resized(self, storage: torch.UntypedStorage) -> None: ...

    def entered(self, module: torch.nn.Module) -> None: ...

    def left(self, module: torch.nn.Module) -> None: ...

    def failed(self, error: Exception) -> None: ...


def _compile_nothing() -> Callable[[], None]:
    """Let compiled functions run, and run others uncompiled. Returns what undoes it.

    Under a dispatch mode torch.compile gives up on a function that it meets for the first time, for good.
    """
    stance = 'eager_on_recompile'
    setting = torch.compiler.set_stance(stance)

    def undo() -> None:
        if compilation.stance() == stance:  # otherwise the user has chosen another one meanwhile
            setting.__exit__(None, None, None)

    return undo


class _ListenerMode(dispatch_modes.TorchDispatchMode):
    """Passes what torch runs on to the listeners."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[OperationListener] = []
        self._undo: list[Callable[[], None]] = []

    def add(self, listener: OperationListener) -> None:
        if not self._undo:
            self._begin()
        self.listeners = [*self.listeners, listener]

    def remove(self, listener: OperationListener) -> None:
        self.listeners = [other for other in self.listeners if other is not listener]
        if not self.listeners and self._undo:  # a listener that failed was removed from the list before
            self._end()

    def _begin(self) -> None:
        # Global hooks leave the model's own hooks and their order as they are.
        hooks = [
            register_module_forward_pre_hook(lambda module, args: self._tell('entered', module)),
            register_module_forward_hook(lambda module, args, output: self._tell('left', module), always_call=True),
        ]
        self._undo = [hook.remove for hook in hooks]
        self._undo.append(self._patch_resize())
        self._undo.append(self._allow_higher_order_operators())
        self._undo.append(_compile_nothing())
        self.__enter__()

    def _end(self) -> None:
        undo, self._undo = self._undo, []
        with contextlib.ExitStack() as stack:  # runs all of them, even if one fails
            stack.callback(dispatch_modes.remove_mode, self)
            for each in reversed(undo):
                stack.callback(each)

    def _patch_resize(self) -> Callable[[], None]:
        """Observe ``UntypedStorage.resize_``, by which FSDP2 frees and allocates; modes do not see it."""
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

    def _allow_higher_order_operators(self) -> Callable[[], None]:
        """Operators of higher order, as flex attention, raise under a mode that they have no rule for: add rules."""
        tables = [
            (operator, getattr(operator, RULES_BY_MODE))
            for operator in operators.higher_order_operators()
            if _ListenerMode not in getattr(operator, RULES_BY_MODE)
        ]
        for operator, table in tables:
            table[_ListenerMode] = functools.partial(self._run_higher_order, operator)

        def undo() -> None:
            for _, table in tables:
                table.pop(_ListenerMode, None)

        return undo

    @staticmethod
    def _run_higher_order(operator: Any, mode: _ListenerMode, *args: Any, **kwargs: Any) -> Any:
        result = operator(*args, **kwargs)
        mode._tell('operated', operator, args, kwargs, result)
        return result

    @holds_signals
    def _tell(self, method: str, *arguments: Any) -> None:
        for listener in self.listeners:
            try:
                getattr(listener, method)(*arguments)
            except Exception as error:  # must not reach the forward or backward that runs here
                self._drop(listener, error)

    def _drop(self, listener: OperationListener, error: Exception) -> None:
        self.listeners = [other for other in self.listeners if other is not listener]
        listener.failed(error)

    @holds_signals
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for kind in types:
            if hasattr(kind, FLATTEN):
                # A wrapper (DTensor) runs first; then this is called for the operations on the tensors inside it.
                return NotImplemented
        keywords = kwargs or {}
        result = in_modes.run(func, args, keywords)
        for listener in self.listeners:
            try:
                listener.operated(func, args, keywords, result)
            except Exception as error:
                self._drop(listener, error)
        return result


_mode: Optional[_ListenerMode] = None


def listen(listener: OperationListener) -> None:
    """Call ``listener`` from now on."""
    global _mode
    if _mode is None:  # not at import: without its base class in torch it cannot be made
        _mode = _ListenerMode()
    _mode.add(listener)


def stop_listening(listener: OperationListener) -> None:
    """Stop calling ``listener``. Removing the last one removes the hooks and the mode."""
    if _mode is not None:
        _mode.remove(listener)


@contextlib.contextmanager
def listening_alone(listener: OperationListener) -> Iterator[None]:
    """Call ``listener``, and none of the others, for what runs in the ``with`` block. The others' mode must be off."""
    mode = _ListenerMode()
    mode.add(listener)
    try:
        yield
    finally:
        mode.remove(listener)
