"""The pictures of a run's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport
from composer_memprof.analysis.run_report.causes.kinds import SLOW, Cause, CopiedByWorkers, HostFull, HostLeak
from composer_memprof.analysis.run_report.readers import FlopsFile, SavedTensorsFile, StepTimesFile
from composer_memprof.analysis.run_report.report import LeadSnapshot, RunReport
from composer_memprof.analysis.snapshot.model import Frame
from composer_memprof.messages import printable
from composer_memprof.recorders.host.summary import HostSummary
from composer_memprof.report.html.run.charts.chart import Chart, Table
from composer_memprof.report.html.run.charts.device_memory import device_memory
from composer_memprof.report.html.run.charts.host_memory import host_memory
from composer_memprof.report.html.run.charts.memory_over_time import memory_over_time
from composer_memprof.report.html.run.charts.module_tree import module_tree
from composer_memprof.report.html.run.charts.ranks import all_ranks, ranks_side_by_side
from composer_memprof.report.html.run.charts.step_times import step_times
from composer_memprof.report.html.run.charts.two_runs import two_runs
from composer_memprof.vocabulary import CATEGORY_LABELS

__all__ = ['Chart', 'Table', 'charts_of']


def charts_of(report: RunReport) -> list[Chart]:
    """The pictures for which the run has files, in the order of the page: the one that shows the first cause leads."""
    first = _key_of(report.causes[0]) if report.causes and report.comparison is None else ''
    return sorted(_charts(report), key=lambda chart: chart.key != first)


def _key_of(cause: Cause) -> str:
    """Of the picture that shows a cause in time or host memory; ``''`` for one in the device's memory."""
    if isinstance(cause, SLOW):
        return 'steps'
    return 'host' if isinstance(cause, (HostLeak, HostFull, CopiedByWorkers)) else ''


def _charts(report: RunReport) -> Iterator[Chart]:
    lead = report.lead
    if report.comparison is not None:
        yield from two_runs(report.comparison)
    if lead is not None and lead.report.oom is not None:
        yield from device_memory(lead.report, lead.label)
    if lead is not None and lead.over_time is not None:
        before = report.lead_before if report.lead_before is not None and report.lead_before.over_time else None
        yield memory_over_time(lead, before)
        if before is not None and report.comparison is not None:
            name = printable(report.comparison.before)
            yield memory_over_time(before, lead, name)
    if len(report.ranks) > 1:
        differing = {odd.kind for odd in report.odd}
        # Of kinds in which no rank differs, the first picture stands for all.
        for number, table in enumerate(report.tables):
            if len(table.ranks) > 1 and (table.kind in differing or number == 0):
                yield from all_ranks(table, report.labels)
                yield ranks_side_by_side(table, report.labels)
    hosts: Mapping[int, HostSummary] = {
        rank: file for rank, file in report.contents.get('host_rss', {}).items() if file.samples
    }
    if hosts:
        rank = max(hosts, key=lambda rank: hosts[rank].rss_peak)
        yield host_memory(hosts[rank], report.labels[rank])
    saved: Mapping[int, SavedTensorsFile] = report.contents.get('saved_tensors_hook', {})
    if saved:
        rank = max(saved, key=lambda rank: saved[rank].total_bytes)
        sizes = {module.name: module.bytes for module in saved[rank].modules}
        yield module_tree(
            'saved',
            'Saved tensors by module',
            f'What autograd saves for backward, {report.labels[rank]}',
            sizes,
            'bytes',
        )
    elif lead is not None:
        device = lead.report.largest_device
        if device is not None and device.peak.modules:
            yield _memory_by_module(device, lead)
    flops: Mapping[int, FlopsFile] = {
        rank: file for rank, file in report.contents.get('flops', {}).items() if file.modules
    }
    if flops:
        rank = max(flops, key=lambda rank: flops[rank].batch_flops or 0)
        own = {module.name: module.own_flops for module in flops[rank].modules or []}
        yield module_tree('flops', 'FLOPs by module', f'Model FLOPs of a batch, {report.labels[rank]}', own, 'flops')
    times: Mapping[int, StepTimesFile] = report.contents.get('step_times', {})
    if times:
        yield step_times(times, report.labels)


def _memory_by_module(device: DeviceReport, lead: LeadSnapshot) -> Chart:
    """All that is allocated at the peak: by module, and what belongs to none by category and line."""
    held = {share.module: share.bytes for share in device.peak.modules if share.module}
    outside: dict[tuple[str, str], float] = {}
    for share in device.peak.outside:
        line = _with_text(share.frames[0], lead.report) if share.frames else 'no line recorded'
        group = CATEGORY_LABELS.get(share.category, share.category)
        outside[group, line] = outside.get((group, line), 0) + share.bytes
    words = f'What is allocated at the peak, {lead.label}'
    return module_tree('modules', 'Memory at the peak by module', words, held, 'bytes', outside)


def _with_text(frame: Frame, report: SnapshotReport) -> str:
    """The line's place and its text, if that is known. Plotly would read a ``<`` in it as markup."""
    text = report.sources.get(f'{frame.filename}:{frame.line}', '').replace('<', '‹')  # noqa: RUF001
    return f'{frame.short()}: {text}' if text else frame.short()
