"""The trace of a step as Chrome's trace format, as torch's profiler writes it: for Perfetto, TensorBoard and HTA.

Source: "Trace Event Format" of the Chromium project; the categories and arguments are those of torch's own traces.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer_memprof.simulated_gpu.clocks import Kind, TraceEvent
from composer_memprof.simulation.trace.recorder import Span, StepTrace

_HOST, _GPU = 1, 0
_HOST_THREAD = 1
#: torch's number of the default stream. Other streams come after it.
_DEFAULT_STREAM = 7
_MODULES_ROW = 1000
_SET = 'Memset'
_KINDS = {
    Kind.PRODUCTS: 'matrix products',
    Kind.ATTENTION: 'attention',
    Kind.OPTIMIZER: 'optimizer',
    Kind.COLLECTIVES: 'collectives',
    Kind.COPIES: 'copies',
}


@dataclasses.dataclass(frozen=True)
class Where:
    """What a trace says of the machine.

    Attributes:
        gpu: the key of the simulated device.
        memory: of the device, in bytes.
        rank: of the process, among ``ranks``.
    """

    gpu: str
    memory: int
    rank: int
    ranks: int


def write_trace(trace: StepTrace, where: Where, path: Path) -> None:
    """Write the trace of a process, for the command that started it."""
    path.write_text(json.dumps(chrome_trace(trace, where), separators=(',', ':')), encoding='utf-8')


def chrome_trace(trace: StepTrace, where: Where) -> dict[str, Any]:
    """The whole file, as JSON takes it. Times are in microseconds since the step began."""
    return {
        'schemaVersion': 1,
        'simulated': where.gpu,
        'deviceProperties': [{'id': _GPU, 'name': f'simulated {where.gpu}', 'totalGlobalMem': where.memory}],
        'distributedInfo': {'backend': 'nccl', 'rank': where.rank, 'world_size': where.ranks},
        'displayTimeUnit': 'ms',
        'traceName': f'simulated {where.gpu}, rank {where.rank}',
        'traceEvents': list(_events(trace, where)),
    }


def _events(trace: StepTrace, where: Where) -> Iterator[dict[str, Any]]:
    rows = _rows(trace)
    yield _named('process', _HOST, 0, f'simulated host of rank {where.rank}')
    yield _named('process', _GPU, 0, f'simulated {where.gpu} of rank {where.rank}')
    yield _named('thread', _HOST, _HOST_THREAD, 'simulated host')
    yield _named('thread', _GPU, _MODULES_ROW, 'simulated: modules, as their kernels run')
    for stream, row in rows.items():
        of_group = f'collectives of group {-1 - stream}' if stream < 0 else f'stream {row}'
        yield _named('thread', _GPU, row, f'simulated {of_group}{" (default)" if row == _DEFAULT_STREAM else ""}')
    step = Span('ProfilerStep#1', (0.0, trace.seconds), (0.0, trace.seconds))
    for span in [step, *sorted(trace.spans, key=lambda each: (each.host[0], -each.host[1]))]:
        yield _complete('user_annotation', span.name, _HOST, _HOST_THREAD, *span.host)
        yield _complete('gpu_user_annotation', span.name, _GPU, _MODULES_ROW, *span.device)
    ends: dict[int, float] = defaultdict(float)
    numbers = itertools.count(1)
    for event in sorted(trace.events, key=lambda each: each.start):
        yield from _of_event(trace, event, rows, next(numbers), ends)


def _rows(trace: StepTrace) -> dict[int, int]:
    """The numbers of the streams in the order in which they are used, that of the model's kernels first."""
    used = [event.stream for event in sorted(trace.events, key=lambda each: each.start) if event.launches]
    streams = dict.fromkeys([trace.stream, *used])
    return {stream: _DEFAULT_STREAM + place for place, stream in enumerate(streams)}


def _of_event(
    trace: StepTrace, event: TraceEvent, rows: dict[int, int], number: int, ends: dict[int, float]
) -> Iterator[dict[str, Any]]:
    name = trace.name_of(event)
    if not event.launches:
        yield _complete('cuda_runtime', name, _HOST, _HOST_THREAD, event.start, event.start + event.seconds)
        return
    row = rows[event.stream]
    host = (event.host_start, event.host_start + event.host_seconds)
    told = {'correlation': number, 'External id': number}
    if event.kind is not Kind.COPIES and name != _SET:
        yield _complete('cpu_op', name, _HOST, _HOST_THREAD, *host, **{'External id': number})
    yield _complete('cuda_runtime', 'cudaLaunchKernel', _HOST, _HOST_THREAD, *host, **told, launches=event.launches)
    category = 'gpu_memcpy' if event.kind is Kind.COPIES else 'gpu_memset' if name == _SET else 'kernel'
    made = _complete(
        category, name, _GPU, row, max(event.start, ends[row]), event.start + event.seconds,
        **told, device=_GPU, context=1, stream=row, kind=_KINDS.get(event.kind, 'other operators'), simulated=True,
    )  # fmt: skip
    ends[row] = event.start + event.seconds
    yield made
    arrow = {'cat': 'ac2g', 'name': 'ac2g', 'id': number}
    yield {'ph': 's', **arrow, 'pid': _HOST, 'tid': _HOST_THREAD, 'ts': _microseconds(host[0])}
    yield {'ph': 'f', **arrow, 'pid': _GPU, 'tid': row, 'ts': made['ts'], 'bp': 'e'}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {'ph': 'M', 'name': f'{what}_name', 'pid': process, 'tid': thread, 'ts': 0, 'args': {'name': name}}


def _complete(
    category: str, name: str, process: int, thread: int, start: float, end: float, **arguments: Any
) -> dict[str, Any]:
    begin = _microseconds(start)
    return {
        'ph': 'X',
        'cat': category,
        'name': name,
        'pid': process,
        'tid': thread,
        'ts': begin,
        'dur': round(max(0.0, _microseconds(end) - begin), 3),
        'args': arguments,
    }


def _microseconds(seconds: float) -> float:
    """To the nanosecond."""
    return round(1e6 * seconds, 3)
