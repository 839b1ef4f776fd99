"""Frames of a made-up training, and the report on its snapshot."""

from __future__ import annotations

from typing import Any

from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport, report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from tests.support.recordings.snapshots import saved

SITE = '/x/lib/python3.11/site-packages/torch'
FORWARD = {'filename': f'{SITE}/nn/modules/linear.py', 'line': 1, 'name': 'forward'}
BACKWARD = {'filename': f'{SITE}/autograd/__init__.py', 'line': 1, 'name': 'backward'}
OPTIMIZER = {'filename': f'{SITE}/optim/adamw.py', 'line': 1, 'name': 'step'}


def answer(content: Any) -> SnapshotReport:
    return report_on(load_snapshot(saved(content)))


def device(content: Any) -> DeviceReport:
    return answer(content).devices[0]


PHASES = [
    [0, 1, 'dataloader'],
    [10, 1, 'forward'],
    [20, 1, 'backward'],
    [30, 1, 'optimizer'],
    [40, 1, 'between batches'],
    [50, 2, 'forward'],
]
