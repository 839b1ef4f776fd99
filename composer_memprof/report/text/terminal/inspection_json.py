"""The report on a snapshot as plain values, for ``inspect --json``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Optional

from composer_memprof.analysis.memory.snapshot_report import SnapshotReport
from composer_memprof.analysis.run import RankSnapshot


def inspection_dict(
    report: SnapshotReport, chosen: RankSnapshot, path: str, page: Optional[Path] = None
) -> dict[str, Any]:
    """The report, the file and why this one was chosen.

    Args:
        report: on the snapshot.
        chosen: the snapshot, alone or among those of a run.
        path: of the file, as the user named it.
        page: that was written.
    """
    file = {
        'path': path,
        'rank': chosen.rank,
        'failure': chosen.failure,
        'others': chosen.others,
        'ranks': chosen.ranks,
        'failed': chosen.failed,
        'page': None if page is None else str(page),
    }
    return {**dataclasses.asdict(report), 'file': file}
