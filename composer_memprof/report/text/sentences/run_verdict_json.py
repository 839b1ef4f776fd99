"""The report on a run as plain values, for ``report --json``."""

from __future__ import annotations

import dataclasses
from typing import Any

from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.report.text.sentences.run_verdict import verdict


def report_dict(report: RunReport) -> dict[str, Any]:
    """The verdict, its causes, what to change, the odd ranks and each rank's figures. Infinite factors are None."""
    return {
        'name': report.files.name,
        'simulated': report.simulated,
        'ranks': report.ranks,
        'verdict': [dataclasses.asdict(sentence) for sentence in verdict(report)],
        'causes': [{'kind': cause.kind, **dataclasses.asdict(cause)} for cause in report.causes],
        'advice': [dataclasses.asdict(each) for each in report.advice],
        'comparison': None if report.comparison is None else dataclasses.asdict(report.comparison),
        'trials': None if report.trials is None else dataclasses.asdict(report.trials),
        'not_tried': report.not_tried,
        'failures': [dataclasses.asdict(failure) for failure in report.failures],
        'attempts': [
            {'ranks': {rank: dataclasses.asdict(each.ranks[rank]) for rank in each.ranks}, 'states': each.states}
            for each in report.attempts
        ],
        'odd_ranks': [dataclasses.asdict(odd) for odd in report.odd],
        'figures': [
            {
                'kind': table.kind,
                'unit': table.unit,
                'batch': table.batch,
                'ranks': table.ranks,
                'rows': [
                    {'group': group, 'name': name, 'values': [None if each != each else each for each in row]}
                    for (group, name), row in zip(table.names, table.values.tolist())
                ],
            }
            for table in report.tables
        ],
        'snapshot': None if report.lead is None else {'rank': report.lead.rank, 'path': str(report.lead.path)},
        'status': report.status,
        'windows_left_out': [dataclasses.asdict(each) for each in report.files.windows_left_out],
        'unreadable': report.unreadable,
    }
