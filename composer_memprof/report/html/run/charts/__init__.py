"""The pictures of a run's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from composer_memprof.analysis.run_report.readers import FlopsFile, SavedTensorsFile, StepTimesFile
from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.recorders.host.summary import HostSummary
from composer_memprof.report.html.run.charts.chart import Chart, Table
from composer_memprof.report.html.run.charts.host_memory import host_memory
from composer_memprof.report.html.run.charts.memory_over_time import memory_over_time
from composer_memprof.report.html.run.charts.module_tree import module_tree
from composer_memprof.report.html.run.charts.ranks import ranks_side_by_side
from composer_memprof.report.html.run.charts.step_times import step_times

__all__ = ['Chart', 'Table', 'charts_of']


def charts_of(report: RunReport) -> Iterator[Chart]:
    """The pictures for which the run has files, in the order of the page."""
    lead = report.lead
    if lead is not None and lead.over_time is not None:
        yield memory_over_time(lead, report.labels[lead.rank])
    if len(report.ranks) > 1:
        differing = {odd.kind for odd in report.odd}
        # Of kinds in which no rank differs, the first picture stands for all.
        for number, table in enumerate(report.tables):
            if len(table.ranks) > 1 and (table.kind in differing or number == 0):
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
        if device is not None and any(share.module for share in device.peak.modules):
            held = {share.module: share.bytes for share in device.peak.modules if share.module}
            yield module_tree(
                'modules',
                'Memory at the peak by module',
                f'What is allocated at the peak, {report.labels[lead.rank]}',
                held,
                'bytes',
            )
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
