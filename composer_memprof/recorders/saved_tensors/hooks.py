"""The hooks of one batch: saved-tensor hooks on this thread, and forward hooks on the model's modules."""

from __future__ import annotations

import threading
import time
from typing import Any, Optional

import torch
from torch import nn

from composer_memprof.recorders.model_hooks import Hook
from composer_memprof.recorders.modules.names import class_name, named_modules
from composer_memprof.recorders.saved_tensors.gathered import GatheredParameters
from composer_memprof.recorders.saved_tensors.hook_stack import HookStack
from composer_memprof.recorders.saved_tensors.ledger import Ledger
from composer_memprof.recorders.saved_tensors.saved_storages import ModuleCall
from composer_memprof.recorders.torch_private import compilation, module_hooks, saved_tensor_hooks
from composer_memprof.recorders.torch_private.graph_tasks import current_graph_task_id
from composer_memprof.signals import holds_signals

_is_compiling = torch.compiler.is_dynamo_compiling

#: The captures with hooks in place, by thread. Recorders of one model share one.
_open: dict[int, SavedTensorCapture] = {}


def open_capture(model: nn.Module, functions: Any) -> Optional[SavedTensorCapture]:
    """The capture of ``model`` on this thread, shared or new; None where other hooks are active."""
    current = _open.get(threading.get_ident())
    if current is not None:
        if current.model is model:
            if current.ledger.functions != functions:
                return None
            current.users += 1
            return current
        # This capture belongs to another model, usually one whose training failed.
        current.ledger.unseen.setdefault('what came after another recording had begun on this thread', set())
        current.close()
    if saved_tensor_hooks.hooks_are_active() or not saved_tensor_hooks.hooks_are_enabled():
        return None
    return SavedTensorCapture(model, functions)


class SavedTensorCapture:
    """Sets its hooks on construction; :meth:`close` removes them.

    Args:
        model (Module): the modules to report.
        functions (tuple, optional): pack and unpack, in place of detaching.
    """

    def __init__(self, model: nn.Module, functions: Any) -> None:
        self.model = model
        #: How many recorders share it.
        self.users = 1
        self.ledger = Ledger(model, functions)
        #: Names and classes of the modules, by number. A wrapper has those of the module that it wraps.
        self.names: list[str] = []
        self.types: list[str] = []
        self._numbers: dict[int, int] = {}
        self._hooked: list[Any] = []
        self._hook_id = module_hooks.new_hook_id()
        self._is_cuda = any(parameter.is_cuda for parameter in model.parameters())
        #: Seconds, on the clock of the ledger's timeline.
        self.began = time.perf_counter()
        self._thread = threading.get_ident()
        skipped = self._modules_without_hooks()
        self._hook_modules(skipped)
        gathered = GatheredParameters(model, skipped)
        self._gathered = gathered if gathered.hooked else None
        self.ledger.gathered = gathered if gathered.watched else None
        self._stack = HookStack(self.ledger, self.names)
        self._stack.enter()
        _open[self._thread] = self

    def _hook_modules(self, skipped: set[int]) -> None:
        before, after = Hook(self._enter), Hook(self._exit)
        for name, module in named_modules(self.model, with_wrappers=True):
            self._numbers[id(module)] = len(self.names)
            self.names.append(name)
            self.types.append(class_name(module))
            if id(module) not in skipped:
                self._hooked.append(module)
                module_hooks.add_forward_hooks(module, self._hook_id, before, after)

    def _modules_without_hooks(self) -> set[int]:
        """Modules that take no hooks, and compiled ones, which torch would compile again for a hook."""
        skipped: set[int] = set()
        for name, module in named_modules(self.model, with_wrappers=True):
            how = _how_compiled(module)
            if how is None or id(module) in skipped:
                continue
            itself = module if how == 'called' else None
            inside = {id(each) for each in module.modules() if each is not itself}
            skipped |= inside
            if inside:
                what = 'compiled or scripted: seen as a whole, not by submodule'
                self.ledger.unseen.setdefault(what, set()).add(name)
        return skipped

    def leave(self) -> None:
        """One recorder less uses it; the last one closes it."""
        self.users -= 1
        if self.users <= 0:
            self.close()

    def close(self) -> None:
        """Take all hooks out."""
        if _open.get(self._thread) is not self:
            return
        del _open[self._thread]
        try:
            self._stack.leave()
        finally:
            for module in self._hooked:
                module_hooks.remove_forward_hooks(module, self._hook_id)
            self._hooked = []
            self.ledger.close()

    # -- forward hooks ------------------------------------------------------------------------------------------

    @holds_signals
    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _is_compiling():
            return
        ledger = self.ledger
        try:
            parent = ledger.call
            number = self._numbers[id(module)]
            recomputes = parent.recomputes or current_graph_task_id() != -1  # a checkpoint runs a forward in backward
            call = ModuleCall(number, parent, recomputes)
            ledger.call = call
            ledger.calls.append(call)
            if self._gathered is not None:
                ledger.mark_parameters(self._gathered.entered(module))
            if number == 0:
                ledger.add_inputs((args, kwargs))
            elif torch.is_grad_enabled():
                ledger.note_arguments(call, args, kwargs)
            if not recomputes:
                self._stack.note_hidden(self.names[number])
            call.began = self._now()
        except Exception as error:
            ledger.error = ledger.error or error

    @holds_signals
    def _exit(self, module: nn.Module, args: Any, output: Any) -> None:
        del args, output  # unused
        if _is_compiling():
            return
        ledger = self.ledger
        try:
            ended = self._now()
            number = self._numbers[id(module)]
            call: Optional[ModuleCall] = ledger.call
            while call is not None and call.module != number:  # submodules whose forward an exception ended
                call = call.parent
            if call is not None and call.parent is not None:
                call.ended = ended
                ledger.call = call.parent
        except Exception as error:
            ledger.error = ledger.error or error

    def is_inside_wrapper(self, call: ModuleCall) -> bool:
        """True for a call that a wrapper makes of its module; the wrapper's own call stands for both."""
        outer = call.parent
        return (
            outer is not None
            and outer.module not in (-1, call.module)
            and self.names[outer.module] == self.names[call.module]
        )

    def is_of_model(self, call: ModuleCall) -> bool:
        """True for a call of the whole model."""
        return call.module >= 0 and not self.names[call.module]

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> list[float]:
        """How long each of the ledger's calls took. Waits for the device."""
        calls = self.ledger.calls
        if not self._is_cuda:
            return [0.0 if call.ended is None else call.ended - call.began for call in calls]
        ended = [call for call in calls if call.ended is not None]
        if ended:
            torch.cuda.synchronize()
        return [0.0 if call.ended is None else call.began.elapsed_time(call.ended) / 1e3 for call in calls]


def _how_compiled(module: nn.Module) -> Optional[str]:
    """``'called'`` where hooks of the module itself run outside of the compiled code, ``'whole'`` where they do not."""
    if isinstance(module, torch.jit.ScriptModule) or compilation.has_compiled_call(module):
        return 'whole'
    # torch.compile(model); or, as Composer does, a compiled ``forward`` in a module that is not compiled.
    if compilation.is_compiled_wrapper(module) or compilation.is_compiled_function(module.__dict__.get('forward')):
        return 'called'
    return None
