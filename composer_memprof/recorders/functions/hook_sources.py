"""Sources with hooks around the model's forward pass: ours, and the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import psutil
from torch import nn

from composer_memprof.recorders.functions.source import FunctionCall, Source, Values
from composer_memprof.recorders.host.processes import ProcessReader
from composer_memprof.recorders.model_hooks import Hook


class RootHooksSource(Source):
    """Host memory and saved bytes before and after the model's forward passes in a call.

    ``rss_pre_forward``, ``npp_pre_forward``, ``rss_post_forward`` and ``npp_post_forward`` are those of the last
    forward pass, ``rss_diff`` is the sum over all. A value without a reading is left out.

    Args:
        model (Module): its root module gets the hooks.
        packed (Callable): returns the bytes that autograd saved so far.
        attributes (Sequence[str]): names of the values to return.
    """

    one_thread = has_hooks = True

    def __init__(self, model: nn.Module, packed: Callable[[], int], attributes: Sequence[str]) -> None:
        self._model = model
        self._packed = packed
        self._attributes = attributes
        self._process: Optional[ProcessReader] = None
        self._handles: list[Any] = []
        self._before: list[tuple[int, int]] = []
        self._after: list[tuple[int, int]] = []
        self._running_calls = 0

    def open(self) -> None:
        self._process = ProcessReader()
        self._handles = [
            self._model.register_forward_pre_hook(Hook(self._read, self._before)),
            self._model.register_forward_hook(Hook(self._read, self._after)),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._running_calls = 0
        if self._process is not None:
            self._process.close()

    def _read(self, readings: list[tuple[int, int]], *_: Any) -> None:
        if self._running_calls and self._process is not None:
            readings.append((self._process.rss(), self._packed()))

    def begin(self, call: FunctionCall) -> Values:
        if not self._running_calls:
            self._before.clear()
            self._after.clear()
        self._running_calls += 1
        call.notes['forwards'] = len(self._before), len(self._after)
        return {}

    def end(self, call: FunctionCall) -> Values:
        self._running_calls -= 1
        first_before, first_after = call.notes['forwards']
        before, after = self._before[first_before:], self._after[first_after:]
        values: Values = {}
        if before:
            values['rss_pre_forward'], values['npp_pre_forward'] = before[-1]
        if after:
            values['rss_post_forward'], values['npp_post_forward'] = after[-1]
        if before and len(before) == len(after):
            values['rss_diff'] = sum(rss for rss, _ in after) - sum(rss for rss, _ in before)
        return {name: value for name, value in values.items() if name in self._attributes}


def memory_info() -> Any:
    """Memory of this process, as psutil returns it; finetuning-scheduler's ``mem_info_handle`` of each module."""
    return psutil.Process().memory_info()


class UserHooksSource(Source):
    """The user's hooks around the forward of every module, and the attributes that they set on the model.

    Hooks are called as by finetuning-scheduler: ``pre(module, args)``, ``post(module, args, output)``, and
    ``reset(model, attributes)`` once all are in place and after each call. Until ``close``, each module has a
    ``mem_info_handle()``. ``close`` also removes the attributes.

    Args:
        model (Module): all its modules get the hooks.
        pre (Sequence[Callable]): before a module's forward.
        post (Sequence[Callable]): after a module's forward.
        reset (Sequence[Callable]): reset the attributes.
        attributes (Sequence[str]): names of the attributes to read.
    """

    one_thread = has_hooks = True

    def __init__(
        self,
        model: nn.Module,
        pre: Sequence[Callable[..., Any]],
        post: Sequence[Callable[..., Any]],
        reset: Sequence[Callable[..., Any]],
        attributes: Sequence[str],
    ) -> None:
        self._model = model
        self._pre, self._post, self._resets = pre, post, reset
        self._attributes = list(attributes)
        self._handles: list[Any] = []
        self._error: Optional[BaseException] = None

    def open(self) -> None:
        module: Any
        for module in self._model.modules():
            module.mem_info_handle = memory_info
            self._handles += [module.register_forward_pre_hook(Hook(self._call, hook)) for hook in self._pre]
            self._handles += [module.register_forward_hook(Hook(self._call, hook)) for hook in self._post]
        self._reset()

    def _call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        """Call the user's hook. Its result must not reach the model, nor its errors the training."""
        try:
            hook(*arguments)
        except Exception as error:
            self._error = self._error or error

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for module in self._model.modules():
            for name in ('mem_info_handle', *self._attributes):
                module.__dict__.pop(name, None)

    def _reset(self) -> None:
        for reset in self._resets:
            reset(self._model, self._attributes)

    def begin(self, call: FunctionCall) -> Values:
        if self._error is not None:
            raise self._error
        values = {name: getattr(self._model, name, None) for name in self._attributes}
        return {name: value for name, value in values.items() if value is not None}

    def end(self, call: FunctionCall) -> Values:
        values = self.begin(call)
        self._reset()
        return values
