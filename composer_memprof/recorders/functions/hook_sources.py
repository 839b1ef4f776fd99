"""Sources with hooks around the model's forward pass: ours, and the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import psutil
from torch import nn

from composer_memprof.recorders.functions.source import FunctionCall, Source, Values
from composer_memprof.recorders.host.processes import ProcessReader
from composer_memprof.recorders.model_hooks import Hook
from composer_memprof.vocabulary import FORWARD


@dataclass(frozen=True)
class _Moment:
    """Bytes of this process, and bytes that autograd saved so far; None where that is not counted."""

    rss: int
    packed: Optional[int]


class RootHooksSource(Source):
    """Host memory and saved bytes before and after the model's forward passes in a call, as finetuning-scheduler's.

    ``rss_pre_forward``, ``npp_pre_forward``, ``rss_post_forward`` and ``npp_post_forward`` are those of the last forward
    pass, and ``npp_diff`` is the difference between its two; 0 before the first one. ``rss_diff`` is the sum over all
    passes. A value without a reading is left out, as the three of autograd are where nobody counts what it saves.

    A forward pass that does not call the model itself, and so runs no hook of it (``model.forward``, as evaluations
    do), lasts as long as the training function ``forward``.

    Args:
        model (Module): its root module gets the hooks.
        packed (Callable): returns the bytes that autograd saved so far; None while they are not counted.
        attributes (Sequence[str]): names of the values to return.
    """

    one_thread = has_hooks = True

    def __init__(self, model: nn.Module, packed: Callable[[], Optional[int]], attributes: Sequence[str]) -> None:
        self._model = model
        self._packed = packed
        self._attributes = attributes
        self._process: Optional[ProcessReader] = None
        self._handles: list[Any] = []
        self._before: list[_Moment] = []
        self._after: list[_Moment] = []
        self._running_calls = 0
        #: As the training function ``forward`` began, and how many passes the hooks had seen by then.
        self._forward: Optional[tuple[_Moment, int]] = None

    def open(self) -> None:
        self._process = ProcessReader()
        self._handles = [
            self._model.register_forward_pre_hook(Hook(self._note, self._before)),
            self._model.register_forward_hook(Hook(self._note, self._after)),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._running_calls = 0
        if self._process is not None:
            self._process.close()
            self._process = None

    def _now(self) -> Optional[_Moment]:
        if not self._running_calls or self._process is None:
            return None
        return _Moment(self._process.rss(), self._packed())

    def _note(self, moments: list[_Moment], *_: Any) -> None:
        now = self._now()
        if now is not None:
            moments.append(now)

    def training_function_begins(self, name: str, inputs: Any) -> None:
        if name == FORWARD:
            now = self._now()
            self._forward = (now, len(self._before)) if now is not None else None

    def training_function_ends(self, name: str) -> None:
        if name != FORWARD or self._forward is None:
            return
        (begun, passes), self._forward, now = self._forward, None, self._now()
        if now is not None and passes == len(self._before):
            self._before.append(begun)
            self._after.append(now)

    def begin(self, call: FunctionCall) -> None:
        if not self._running_calls:
            self._before.clear()
            self._after.clear()
        self._running_calls += 1
        self.restart(call)

    def restart(self, call: FunctionCall) -> None:
        call.notes['forwards'] = len(self._before), len(self._after)

    def read(self, call: FunctionCall, point: str) -> Values:
        first_before, first_after = call.notes['forwards']
        before, after = self._before[first_before:], self._after[first_after:]
        values: Values = {'npp_diff': 0 if self._packed() is not None else None}
        if before:
            values['rss_pre_forward'], values['npp_pre_forward'] = before[-1].rss, before[-1].packed
        if after:
            values['rss_post_forward'], values['npp_post_forward'] = after[-1].rss, after[-1].packed
        if before and len(before) == len(after):
            begun, ended = before[-1].packed, after[-1].packed
            values['npp_diff'] = ended - begun if begun is not None and ended is not None else None
            values['rss_diff'] = sum(moment.rss for moment in after) - sum(moment.rss for moment in before)
        return {name: value for name, value in values.items() if name in self._attributes and value is not None}

    def end(self, call: FunctionCall) -> None:
        self._running_calls -= 1


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

    def read(self, call: FunctionCall, point: str) -> Values:
        if self._error is not None:
            raise self._error
        values = {name: getattr(self._model, name, None) for name in self._attributes}
        return {name: value for name, value in values.items() if value is not None}

    def restart(self, call: FunctionCall) -> None:
        self._reset()

    def end(self, call: FunctionCall) -> None:
        self._reset()
