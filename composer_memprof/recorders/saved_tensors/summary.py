"""From a finished capture to its result: bytes by module, operation and shape, and what checkpoints would free."""

from __future__ import annotations

from typing import Optional

from composer_memprof.recorders.modules.names import OUTSIDE
from composer_memprof.recorders.saved_tensors.hooks import SavedTensorCapture
from composer_memprof.recorders.saved_tensors.result import (
    BatchBytes,
    Checkpoint,
    ModuleBytes,
    OperationBytes,
    SavedTensors,
    ShapeBytes,
)
from composer_memprof.recorders.saved_tensors.saved_storages import (
    ACTIVATION,
    BUFFER,
    INPUT,
    PARAMETER,
    RECOMPUTED,
    ModuleCall,
    SavedStorage,
)

#: The name of operations that did not run backward.
UNKNOWN = '(not run backward)'
#: The most points that are kept of the curve of live bytes.
_CURVE_POINTS = 512


def summarize(
    capture: Optional[SavedTensorCapture],
    seconds: list[float],
    largest_batch: Optional[int],
    forwards: int,
    batches: list[BatchBytes],
    unseen: dict[str, list[str]],
) -> SavedTensors:
    """The result of a window.

    Args:
        capture (SavedTensorCapture, optional): of its largest batch; None where nothing was seen.
        seconds (list[float]): how long each call took.
        largest_batch (int, optional): its number.
        forwards (int): calls of the model in it.
        batches (list): of the window.
        unseen (dict): what could not be seen, with the names of the modules concerned.
    """
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
        live=_curve(ledger.timeline, capture.began),
        batches=batches,
        unseen=unseen,
    )


def _by_module(capture: SavedTensorCapture, storages: list[SavedStorage]) -> list[ModuleBytes]:
    calls: dict[str, int] = {}
    types: dict[str, str] = {OUTSIDE: ''}
    for number, name in enumerate(capture.names):
        types[name] = capture.types[number]
    for call in capture.ledger.calls:
        if not call.recomputes and not capture.is_inside_wrapper(call):
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
        for each in {name} if first.module < 0 else {capture.names[call.module] for call in _with_callers(first)}:
            inclusive[each] = inclusive.get(each, 0) + storage.nbytes
    rows = []
    for name in {**calls, **own}:
        size, parameters, count, packs = own.get(name, (0, 0, 0, 0))
        total = inclusive.get(name, 0)
        rows.append(ModuleBytes(name, types[name], size, total, parameters, count, packs, calls.get(name, 0)))
    return sorted(rows, key=lambda row: -row.bytes)


def _with_callers(call: ModuleCall) -> list[ModuleCall]:
    """The call and those around it, the innermost first; without what runs outside of all modules."""
    calls: list[ModuleCall] = []
    each: Optional[ModuleCall] = call
    while each is not None and each.module >= 0:
        calls.append(each)
        each = each.parent
    return calls


def _by_operation(activations: list[SavedStorage]) -> list[OperationBytes]:
    rows: dict[str, list[int]] = {}
    for storage in activations:
        row = rows.setdefault(storage.operation or UNKNOWN, [0, 0, 0])
        row[0] += storage.nbytes
        row[1] += 1
        row[2] += storage.packs
    return sorted((OperationBytes(name, *row) for name, row in rows.items()), key=lambda row: -row.bytes)


def _by_shape(activations: list[SavedStorage]) -> list[ShapeBytes]:
    rows: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    for storage in activations:
        dtype, shape, device = storage.tensor
        key = (str(dtype).removeprefix('torch.'), tuple(shape), str(device))
        row = rows.setdefault(key, [0, 0])
        row[0] += storage.nbytes
        row[1] += 1
    return sorted((ShapeBytes(*key, *row) for key, row in rows.items()), key=lambda row: -row.bytes)


def _checkpoints(
    capture: SavedTensorCapture, activations: list[SavedStorage], seconds: list[float]
) -> list[Checkpoint]:
    """For each module the storages that nothing outside of it saved, less those of its own inputs."""
    ledger = capture.ledger
    frees: dict[ModuleCall, int] = {}
    innermost: dict[int, ModuleCall] = {}
    for storage in activations:
        common = _common_call(storage.savers)
        innermost[id(storage)] = common
        for call in _with_callers(common):
            frees[call] = frees.get(call, 0) + storage.nbytes
    for call in frees:
        for key, nbytes in dict(call.inputs).items():
            if ledger.kind_of(key) != ACTIVATION:
                continue
            storage_of_input = ledger.storages.get(key)
            if storage_of_input is None or call in _with_callers(innermost[id(storage_of_input)]):
                frees[call] -= nbytes
    rows: dict[str, list[float]] = {}
    took = dict(zip(ledger.calls, seconds))
    for call, freed in frees.items():
        # A checkpoint of the whole model would save nothing.
        if call.module >= 0 and not capture.is_of_model(call) and not capture.is_inside_wrapper(call):
            row = rows.setdefault(capture.names[call.module], [0, 0.0])
            row[0] += freed
            row[1] += took.get(call, 0.0) * 1e3
    types = dict(zip(capture.names, capture.types))
    found = [Checkpoint(name, types[name], int(row[0]), round(row[1], 3)) for name, row in rows.items() if row[0] > 0]
    return sorted(found, key=lambda row: (-row.frees_bytes, row.recompute_ms))


def _common_call(savers: list[ModuleCall]) -> ModuleCall:
    """The innermost call that all ``savers`` are inside of."""
    common = savers[0]
    for saver in savers[1:]:
        callers: set[ModuleCall] = {*_with_callers(saver)}
        while common.module >= 0 and common not in callers:
            assert common.parent is not None
            common = common.parent
    return common


def _curve(timeline: list[tuple[float, int]], began: float) -> list[tuple[float, int]]:
    """At most about ``_CURVE_POINTS`` points: the highest one of each part of the curve, and the last one."""
    step = -(-len(timeline) // _CURVE_POINTS)
    points = [max(timeline[i : i + step], key=lambda point: point[1]) for i in range(0, len(timeline), step)]
    if points and points[-1] is not timeline[-1]:
        points.append(timeline[-1])
    return [(round((at - began) * 1e3, 3), size) for at, size in points]
