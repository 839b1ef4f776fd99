"""What autograd keeps for the backward pass: by module, by operation, by dtype and shape.

with SavedTensorsRecorder(model) as recorder:
    loss_of(model(batch)).backward()
print(recorder.result().total_bytes)
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional

import torch
from torch import nn
from torch._dynamo import OptimizedModule
from torch.utils.hooks import RemovableHandle

from composer_memprof.recorders.model_hooks import Hook
from composer_memprof.recorders.modules.names import OUTSIDE, plain_name
from composer_memprof.recorders.saved_tensors.ledger import (
    ACTIVATION,
    BUFFER,
    INPUT,
    PARAMETER,
    RECOMPUTED,
    Call,
    Ledger,
    Storage,
)
from composer_memprof.recorders.saved_tensors.pack_functions import FunctionOrPath, resolve_functions
from composer_memprof.recorders.saved_tensors.result import (
    BatchBytes,
    Checkpoint,
    ModuleBytes,
    OperationBytes,
    SavedTensors,
    ShapeBytes,
)

#: The name of operations that the backward pass did not come to.
UNKNOWN = '(not run backward)'
#: Why nothing is seen of a batch.
_TAKEN = 'a pair of saved-tensor hooks around the whole batch keeps what is saved'
#: Points of the curve of live bytes that are kept at most.
_CURVE_POINTS = 512

_autograd: Any = torch._C._autograd
_is_compiling = torch.compiler.is_dynamo_compiling


class SavedTensorsRecorder:
    """Records what autograd keeps in a batch, or in several; usable without a Trainer.

    Hooks are in the model and in autograd from :meth:`begin` to :meth:`end` only, and not at all while gradients are
    off. A pair of hooks that the user has put around all of it is left alone, and nothing is recorded; inside of a
    pair within the forward pass, as of a checkpoint, its tensors stay unseen, which the result says.

    A tensor that a custom autograd Function saved comes back to it equal, but not as the same Python object, as with
    any pair of hooks. Its in-place modification is found as without hooks.

    Args:
        model (Module): with the modules to name.
        functions (Sequence, optional): pack and unpack in place of detaching; callables, dotted paths or
            ``'identity_lambda'``. What pack makes of a tensor is what is counted as kept.

    Raises:
        ValueError: for a model without parameters, or functions that can't be had.
    """

    def __init__(self, model: nn.Module, functions: Optional[Sequence[FunctionOrPath]] = None) -> None:
        check_has_parameters(model)
        self.model = model
        self.functions = resolve_functions(functions)
        self.batches: list[BatchBytes] = []
        self._largest: Optional[_Capture] = None
        self._largest_batch: Optional[int] = None
        self._capture: Optional[_Capture] = None
        self._is_recording = False
        self._batch = 0
        self._unseen: dict[str, set[str]] = {}
        #: The first error in a hook; the training never sees it.
        self.error: Optional[BaseException] = None

    @property
    def is_recording(self) -> bool:
        return self._is_recording

    def begin(self, batch: Optional[int] = None) -> None:
        """A batch begins: put the hooks in place. ``batch`` is its number, by default counted from 0."""
        if self._is_recording:
            self.end()
        self._is_recording = True
        self._batch = len(self.batches) if batch is None else batch
        if not torch.is_grad_enabled():
            self._unseen.setdefault('gradients are off, so that nothing is saved', set())
            return
        capture = _open_capture(self.model, self.functions)
        if capture is None:
            self._unseen.setdefault(_TAKEN, set())
        self._capture = capture

    def add_inputs(self, batch: Any) -> None:
        """The tensors in ``batch`` are inputs. Those that the model is called with are found without this."""
        if self._capture is not None:
            self._capture.ledger.add_inputs(batch)

    def end(self) -> None:
        """The batch is over: take the hooks out."""
        capture, self._capture = self._capture, None
        self._is_recording = False
        number = self._batch
        if capture is None:
            self.batches.append(BatchBytes(number, 0, 0, 0, 0))
            return
        capture.leave()
        ledger = capture.ledger
        self.error = self.error or ledger.error
        forwards = sum(call.module == 0 and not call.recomputes for call in ledger.calls)
        self.batches.append(BatchBytes(number, ledger.total, ledger.peak, ledger.packed_bytes, forwards))
        for what, names in ledger.unseen.items():
            self._unseen.setdefault(what, set()).update(names)
        if self._largest is None or ledger.total > self._largest.ledger.total:
            self._largest, self._largest_batch = capture, number

    def so_far(self) -> tuple[int, int]:
        """Of the batch that is being recorded, ``packed_bytes`` and ``total_bytes`` until now."""
        capture = self._capture
        return (capture.ledger.packed_bytes, capture.ledger.total) if capture is not None else (0, 0)

    def __enter__(self) -> SavedTensorsRecorder:
        self.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def result(self) -> Callable[[], SavedTensors]:
        """Takes from the device what is to be had there only; the result itself can be made later, anywhere."""
        largest, batches = self._largest, list(self.batches)
        forwards = next((each.forwards for each in batches if each.batch == self._largest_batch), 0)
        unseen = {what: sorted(names) for what, names in self._unseen.items()}
        seconds = largest.seconds() if largest is not None else []

        def make() -> SavedTensors:
            return _summary(largest, seconds, self._largest_batch, forwards, batches, unseen)

        return make


def check_has_parameters(model: nn.Module) -> None:
    """Refuse a model that autograd has nothing to do for.

    Raises:
        ValueError: if it has no parameters.
    """
    if next(model.parameters(), None) is None:
        raise ValueError(f'{type(model).__name__} has no parameters, so that autograd saves nothing to be recorded')


# -- hooks in place ---------------------------------------------------------------------------------------------------

#: Who has hooks in place, by thread. Recorders of one model share them.
_open: dict[int, _Capture] = {}


def _open_capture(model: nn.Module, functions: Any) -> Optional[_Capture]:
    """None where someone else's hooks are active already."""
    current = _open.get(threading.get_ident())
    if current is not None:
        if current.model is model:
            if current.ledger.functions != functions:
                return None
            current.users += 1
            return current
        # Of another model: most often of a training that broke off.
        current.ledger.unseen.setdefault('what came after another recording had begun on this thread', set())
        current.close()
    if _hooks_are_active() or not _autograd._saved_tensors_hooks_is_enabled():
        return None
    return _Capture(model, functions)


def _hooks_are_active() -> bool:
    """Whether this thread has saved-tensor hooks. They can be switched off only where there are none."""
    if not _autograd._saved_tensors_hooks_is_enabled():
        return False
    try:
        _autograd._saved_tensors_hooks_disable('composer_memprof looks whether there are hooks')
    except RuntimeError:
        return True
    finally:
        _autograd._saved_tensors_hooks_enable()  # where it refuses, it has switched them off all the same
    return False


class _Capture:
    """The hooks of one batch, in place from the start until :meth:`close`."""

    def __init__(self, model: nn.Module, functions: Any) -> None:
        self.model = model
        self.users = 1
        self.ledger = Ledger(model, functions)
        self.names: list[str] = []
        self.types: list[str] = []
        self._numbers: dict[int, int] = {}
        self._hooked: list[Any] = []
        self._hook: int = RemovableHandle(OrderedDict()).id
        self._is_cuda = any(parameter.is_cuda for parameter in model.parameters())
        self._began = time.perf_counter()
        self._thread = threading.get_ident()
        #: Pairs of hooks that are in place over ours.
        self._over_ours: list[Any] = []
        self._put_in_place()

    def _put_in_place(self) -> None:
        module: Any
        enter, leave = Hook(self._enter), Hook(self._exit)
        unhooked = self._modules_to_leave_alone()
        for name, module in self.model.named_modules():
            self._numbers[id(module)] = len(self.names)
            self.names.append(plain_name(name))
            self.types.append(type(module).__name__)
            if id(module) in unhooked:
                continue
            self._hooked.append(module)
            # As register_forward_pre_hook and register_forward_hook do, in a tenth of the time.
            module._forward_pre_hooks[self._hook] = enter
            module._forward_pre_hooks_with_kwargs[self._hook] = True
            module._forward_hooks[self._hook] = leave
            module._forward_hooks_always_called[self._hook] = True
        self._originals: tuple[Any, ...] = ()
        self._replacements: tuple[Any, ...] = ()
        self._is_on = True
        self._watch_other_hooks()
        _autograd._push_saved_tensors_default_hooks(self.ledger.pack, self.ledger.unpack)
        _open[self._thread] = self

    def _modules_to_leave_alone(self) -> set[int]:
        """Those that take no hooks, and those that are compiled: a hook would have them compiled again."""
        alone: set[int] = set()
        for name, module in self.model.named_modules():
            how = _how_compiled(module)
            if how is None or id(module) in alone:
                continue
            itself = module if how == 'called' else None
            inside = {id(each) for each in module.modules() if each is not itself}
            alone |= inside
            if inside:
                what = 'compiled or scripted: seen as a whole, not by submodule'
                self.ledger.unseen.setdefault(what, set()).add(plain_name(name))
        return alone

    def leave(self) -> None:
        """One of those who share it has seen enough."""
        self.users -= 1
        if self.users <= 0:
            self.close()

    def close(self) -> None:
        if _open.get(self._thread) is not self:
            return
        del _open[self._thread]
        try:
            if threading.get_ident() == self._thread:  # from another, it is that one's pair that would go
                self._without_ours(again=False)
        finally:
            self._take_hooks_out()

    def _take_hooks_out(self) -> None:
        self._unwatch_other_hooks()
        for module in self._hooked:
            for hooks in (
                *(module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
                *(module._forward_hooks, module._forward_hooks_always_called),
            ):
                hooks.pop(self._hook, None)
        self._hooked = []
        self.ledger.close()

    def _without_ours(self, again: bool) -> None:
        """Take our pair, or put it back (``again``), under those that were put over it."""
        if again:
            _autograd._push_saved_tensors_default_hooks(self.ledger.pack, self.ledger.unpack)
        else:
            for _ in range(len(self._over_ours) + 1):
                _autograd._pop_saved_tensors_default_hooks()
        for pair in self._over_ours:
            _autograd._push_saved_tensors_default_hooks(pair.pack_hook, pair.unpack_hook)

    # -- modules ------------------------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _is_compiling():
            return
        ledger = self.ledger
        try:
            parent = ledger.call
            number = self._numbers[id(module)]
            recomputes = parent.recomputes or torch._C._current_graph_task_id() != -1
            call = Call(number, parent, recomputes)
            ledger.call = call
            ledger.calls.append(call)
            if number == 0:
                ledger.add_inputs((args, kwargs))
            elif torch.is_grad_enabled():
                ledger.note_arguments(call, args, kwargs)
            if self._over_ours and not recomputes:
                self._note_unseen(self._over_ours[-1], self.names[number])
            call.began = self._now()
        except Exception as error:
            ledger.error = ledger.error or error

    def _exit(self, module: nn.Module, args: Any, output: Any) -> None:
        del args, output  # unused
        if _is_compiling():
            return
        ledger = self.ledger
        try:
            ended = self._now()
            number = self._numbers[id(module)]
            call: Optional[Call] = ledger.call
            while call is not None and call.module != number:  # submodules that were left by an exception
                call = call.parent
            if call is not None and call.parent is not None:
                call.ended = ended
                ledger.call = call.parent
        except Exception as error:
            ledger.error = ledger.error or error

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> list[float]:
        """Of each call of the forward pass."""
        calls = self.ledger.calls
        if not self._is_cuda:
            return [0.0 if call.ended is None else call.ended - call.began for call in calls]
        ended = [call for call in calls if call.ended is not None]
        if ended:
            torch.cuda.synchronize()
        return [0.0 if call.ended is None else call.began.elapsed_time(call.ended) / 1e3 for call in calls]

    # -- others' hooks --------------------------------------------------------------------------------------------

    def _note_unseen(self, pair: Any, name: str) -> None:
        what = f'saved inside of {type(pair).__qualname__}, which keeps it in its own way'
        self.ledger.unseen.setdefault(what, set()).add(name)

    def _watch_other_hooks(self) -> None:
        graph: Any = torch.autograd.graph
        pairs = graph.saved_tensors_hooks
        enter, leave, disable = pairs.__enter__, pairs.__exit__, graph.disable_saved_tensors_hooks
        self._originals = enter, leave, disable

        def enter_pair(pair: Any) -> Any:
            result = enter(pair)
            if _open.get(threading.get_ident()) is self:
                self._over_ours.append(pair)
                if torch._C._current_graph_task_id() == -1:
                    self._note_unseen(pair, self._name_of_call())
            return result

        def leave_pair(pair: Any, *exc: object) -> Any:
            if self._over_ours and self._over_ours[-1] is pair and _open.get(threading.get_ident()) is self:
                self._over_ours.pop()
            return leave(pair, *exc)

        @contextmanager
        def disabled(error_message: str) -> Iterator[None]:
            # What is switched off this way (torch.func, vmap) would refuse to run under hooks, ours among them.
            ours_only = _open.get(threading.get_ident()) is self and not self._over_ours and self._is_on
            if not ours_only:
                with disable(error_message):
                    yield
                return
            what = 'saved inside of torch.func or vmap, which run without saved-tensor hooks'
            self.ledger.unseen.setdefault(what, set()).add(self._name_of_call())
            self._is_on = False
            self._without_ours(again=False)
            try:
                with disable(error_message):
                    yield
            finally:
                if _open.get(self._thread) is self:
                    self._without_ours(again=True)
                self._is_on = True

        self._replacements = enter_pair, leave_pair, disabled
        pairs.__enter__, pairs.__exit__, graph.disable_saved_tensors_hooks = self._replacements

    def _unwatch_other_hooks(self) -> None:
        graph: Any = torch.autograd.graph
        pairs = graph.saved_tensors_hooks
        ours, originals = self._replacements, self._originals
        self._replacements = self._originals = ()
        # What someone else has put over ours since stays; ours in it only passes on.
        for owner, name, replacement, original in zip(
            (pairs, pairs, graph), ('__enter__', '__exit__', 'disable_saved_tensors_hooks'), ours, originals
        ):
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)

    def _name_of_call(self) -> str:
        module = self.ledger.call.module
        return OUTSIDE if module < 0 else self.names[module]


def _how_compiled(module: nn.Module) -> Optional[str]:
    """``'called'`` where hooks of the module itself run outside of what is compiled, ``'whole'`` where they don't."""
    if isinstance(module, torch.jit.ScriptModule) or getattr(module, '_compiled_call_impl', None) is not None:
        return 'whole'
    # torch.compile(model), and Composer's way to compile: a forward that is compiled, in a module that is not.
    if isinstance(module, OptimizedModule) or hasattr(module.__dict__.get('forward'), '_torchdynamo_orig_callable'):
        return 'called'
    return None


# -- the result -------------------------------------------------------------------------------------------------------


def _summary(
    capture: Optional[_Capture],
    seconds: list[float],
    largest_batch: Optional[int],
    forwards: int,
    batches: list[BatchBytes],
    unseen: dict[str, list[str]],
) -> SavedTensors:
    if capture is None:
        return SavedTensors(
            *(0, 0, 0, 0, 0, 0, 0, 0), None, 0, modules=[], operations=[], shapes=[], checkpoints=[], live=[],
            batches=batches, unseen=unseen,
        )  # fmt: skip
    ledger = capture.ledger
    storages = list(ledger.storages.values())
    activations = [storage for storage in storages if storage.kind == ACTIVATION]

    def bytes_of(kind: int) -> int:
        return sum(storage.nbytes for storage in storages if storage.kind == kind)

    return SavedTensors(
        total_bytes=ledger.total,
        peak_bytes=ledger.peak,
        parameter_bytes=bytes_of(PARAMETER),
        buffer_bytes=bytes_of(BUFFER),
        input_bytes=bytes_of(INPUT),
        packed_bytes=ledger.packed_bytes,
        recomputed_bytes=bytes_of(RECOMPUTED),
        left_bytes=ledger.left_bytes,
        largest_batch=largest_batch,
        forwards=forwards,
        modules=_by_module(capture, storages),
        operations=_by_operation(activations),
        shapes=_by_shape(activations),
        checkpoints=_checkpoints(capture, activations, seconds),
        live=_curve(ledger.timeline, capture._began),
        batches=batches,
        unseen=unseen,
    )


def _by_module(capture: _Capture, storages: list[Storage]) -> list[ModuleBytes]:
    calls: dict[str, int] = {}
    types: dict[str, str] = {OUTSIDE: ''}
    for number, name in enumerate(capture.names):
        types[name] = capture.types[number]  # of a wrapper and what it wraps, the latter
    for call in capture.ledger.calls:
        if not call.recomputes:
            calls[capture.names[call.module]] = calls.get(capture.names[call.module], 0) + 1
    own: dict[str, list[int]] = {}
    inclusive: dict[str, int] = {}
    for storage in storages:
        if storage.kind not in (ACTIVATION, PARAMETER):
            continue
        first = storage.savers[0]
        name = OUTSIDE if first.module < 0 else capture.names[first.module]
        row = own.setdefault(name, [0, 0, 0, 0])
        if storage.kind == PARAMETER:
            row[1] += storage.nbytes
            continue
        row[0] += storage.nbytes
        row[2] += 1
        row[3] += storage.packs
        for each in {name} if first.module < 0 else {capture.names[call.module] for call in _lineage(first)}:
            inclusive[each] = inclusive.get(each, 0) + storage.nbytes
    rows = []
    for name in {**calls, **own}:
        size, parameters, count, packs = own.get(name, (0, 0, 0, 0))
        total = inclusive.get(name, 0)
        rows.append(ModuleBytes(name, types[name], size, total, parameters, count, packs, calls.get(name, 0)))
    return sorted(rows, key=lambda row: -row.bytes)


def _lineage(call: Call) -> list[Call]:
    """The call and those that it is part of, from inside out; without what lies outside of all modules."""
    lineage: list[Call] = []
    each: Optional[Call] = call
    while each is not None and each.module >= 0:
        lineage.append(each)
        each = each.parent
    return lineage


def _by_operation(activations: list[Storage]) -> list[OperationBytes]:
    rows: dict[str, list[int]] = {}
    for storage in activations:
        row = rows.setdefault(storage.operation or UNKNOWN, [0, 0, 0])
        row[0] += storage.nbytes
        row[1] += 1
        row[2] += storage.packs
    return sorted((OperationBytes(name, *row) for name, row in rows.items()), key=lambda row: -row.bytes)


def _by_shape(activations: list[Storage]) -> list[ShapeBytes]:
    rows: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    for storage in activations:
        dtype, shape, device = storage.tensor
        key = (str(dtype).removeprefix('torch.'), tuple(shape), str(device))
        row = rows.setdefault(key, [0, 0])
        row[0] += storage.nbytes
        row[1] += 1
    return sorted((ShapeBytes(*key, *row) for key, row in rows.items()), key=lambda row: -row.bytes)


def _checkpoints(capture: _Capture, activations: list[Storage], seconds: list[float]) -> list[Checkpoint]:
    """What checkpointing each module would free: what nobody outside of it saved too, but for its own inputs."""
    ledger = capture.ledger
    frees: dict[Call, int] = {}
    innermost: dict[int, Call] = {}
    for storage in activations:
        common = _common_call(storage.savers)
        innermost[id(storage)] = common
        for call in _lineage(common):
            frees[call] = frees.get(call, 0) + storage.nbytes
    for call in frees:
        for key, nbytes in dict(call.inputs).items():
            if ledger.kind_of(key) != ACTIVATION:
                continue
            storage_of_input = ledger.storages.get(key)
            if storage_of_input is None or call in _lineage(innermost[id(storage_of_input)]):
                frees[call] -= nbytes
    rows: dict[str, list[float]] = {}
    took = dict(zip(ledger.calls, seconds))
    for call, freed in frees.items():
        if call.module > 0:  # of the whole model nothing would be left to do
            row = rows.setdefault(capture.names[call.module], [0, 0.0])
            row[0] += freed
            row[1] += took.get(call, 0.0) * 1e3
    types = dict(zip(capture.names, capture.types))
    found = [Checkpoint(name, types[name], int(row[0]), round(row[1], 3)) for name, row in rows.items() if row[0] > 0]
    return sorted(found, key=lambda row: (-row.frees_bytes, row.recompute_ms))


def _common_call(savers: list[Call]) -> Call:
    """The innermost call that all savers are part of."""
    common = savers[0]
    for saver in savers[1:]:
        lineage: set[Call] = {*_lineage(saver)}
        while common.module >= 0 and common not in lineage:
            assert common.parent is not None
            common = common.parent
    return common


def _curve(timeline: list[tuple[float, int]], began: float) -> list[tuple[float, int]]:
    """Of each stretch of the curve its highest point, at most so many as are kept; always the last one too."""
    step = -(-len(timeline) // _CURVE_POINTS)
    points = [max(timeline[i : i + step], key=lambda point: point[1]) for i in range(0, len(timeline), step)]
    if points and points[-1] is not timeline[-1]:
        points.append(timeline[-1])
    return [(round((at - began) * 1e3, 3), size) for at, size in points]
