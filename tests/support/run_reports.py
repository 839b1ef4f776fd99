"""Reports on runs, for tests."""

from __future__ import annotations

from pathlib import Path

from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.report import RunReport, report_on_run
from composer_memprof.report.text.sentences.run_verdict import verdict


def reported(*paths: Path) -> RunReport:
    return report_on_run(find_files(paths))


def said(report: RunReport, about: str = '') -> list[str]:
    return [sentence.text for sentence in verdict(report) if not about or sentence.about == about]
