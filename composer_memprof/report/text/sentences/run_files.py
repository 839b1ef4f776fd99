"""A sentence for each kind of file of which nothing else was said, so that every recording has an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from composer_memprof.analysis.module_memory import ModuleMemorySummary
from composer_memprof.analysis.run import Artifact
from composer_memprof.analysis.run_report.readers import FlopsFile, MemrayFile, SavedTensorsFile
from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.messages import count_of, human_bytes
from composer_memprof.report.text.amounts import amount
from composer_memprof.report.text.sentences.run_causes import on_rank
from composer_memprof.vocabulary import CATEGORY_LABELS, MEMORY_CATEGORIES

_LABELS = {each.tracker: CATEGORY_LABELS.get(each.key, each.key) for each in MEMORY_CATEGORIES if each.tracker}
#: Recordings without figures: what each shows.
_SHOWN = {
    'torch_profiler': ('trace', 'operators over time; open it in chrome://tracing or ui.perfetto.dev'),
    'viztracer': ('trace', "Python's calls over time; open its page"),
    'mem_profiler': ('file', 'memory at each call of the functions that it watches'),
}


def kind_sentences(report: RunReport) -> Iterator[str]:
    """What files say that neither a cause, nor a snapshot, nor a difference of ranks has said."""
    contents = report.contents
    if not report.summaries:
        for rank, tracked in _largest(contents.get('fsdp_mem_tracker', {})):
            yield from _tracked(tracked, on_rank(rank, report))
        for rank, saved in _largest(contents.get('saved_tensors_hook', {})):
            yield _saved(saved, on_rank(rank, report))
    for rank, recorded in _largest(contents.get('memray', {})):
        yield _memray(recorded, on_rank(rank, report))
    for rank, counted in _largest(contents.get('flops', {})):
        yield from _flops(counted, on_rank(rank, report))
    yield from _without_figures(report)


def _largest(files: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
    """The file of the rank with the largest figure; nothing if there is none."""
    if files:
        rank = max(files, key=lambda rank: _size(files[rank]))
        yield rank, files[rank]


def _size(content: Any) -> int:
    if isinstance(content, ModuleMemorySummary):
        return max((sizes.get('Total', 0) for sizes in content.peak.values()), default=0)
    return int(getattr(content, 'total_bytes', 0) or getattr(content, 'peak_bytes', 0) or 0)


def _tracked(content: ModuleMemorySummary, of: str) -> Iterator[str]:
    for device, sizes in sorted(content.peak.items(), key=lambda item: -item[1].get('Total', 0))[:1]:
        parts = {name: size for name, size in sizes.items() if name != 'Total' and size}
        if parts:
            most = max(parts, key=lambda name: parts[name])
            share = 100 * parts[most] / max(sizes.get('Total', 0), 1)
            yield (
                f"The model's memory{of} peaks at {human_bytes(sizes.get('Total', 0))} on {device}; "
                f'{_LABELS.get(most, most)} leads with {human_bytes(parts[most])} ({share:.0f} %).'
            )


def _saved(content: SavedTensorsFile, of: str) -> str:
    text = f'Autograd{of} saves {human_bytes(content.total_bytes)} of a batch for backward'
    own = max(content.modules, key=lambda module: module.bytes, default=None)
    if own is None or not own.bytes:
        return f'{text}.'
    return f'{text}; the module that saves most is {own.name or "the model itself"} ({human_bytes(own.bytes)}).'


def _memray(content: MemrayFile, of: str) -> str:
    text = f'Within a window of memray{of}, the process allocates up to {human_bytes(content.peak_bytes)}'
    if content.at_peak:
        first = content.at_peak[0]
        text += f', most by {PurePath(first.file).name}:{first.line} {first.function} ({human_bytes(first.bytes)})'
    return f'{text}; {human_bytes(content.left_bytes)} of it is left at the end.'


def _flops(content: FlopsFile, of: str) -> Iterator[str]:
    if content.mfu is None and content.batch_flops is not None:
        yield f'A batch{of} takes {amount(content.batch_flops, "flops")}.'


def _without_figures(report: RunReport) -> Iterator[str]:
    for kind, (what, shows) in _SHOWN.items():
        found = [each for each in report.files.artifacts if each.entry.kind == kind and each.entry.status != 'removed']
        if found:
            yield f'{_count(found, what)} of {kind}: {shows} ({found[-1].entry.path}).'
    others = [each for each in report.files.artifacts if each.is_of_other_stage and '.' not in each.entry.kind]
    if others:
        kinds = ', '.join(sorted({each.entry.kind for each in others}))
        yield (
            f'{_count(others, "window")} of evaluation or prediction ({kinds}), which are not compared with training '
            f'(composer-memprof ls): {others[-1].entry.path}.'
        )


def _count(found: Sequence[Artifact], what: str) -> str:
    return f'One {what}' if len(found) == 1 else count_of(len(found), what)
