"""The page of a run as one HTML file. Loads nothing and needs no server."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.resources
import os
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import markupsafe

from composer_memprof.analysis.run import Artifact
from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.artifacts.writing.temporary_files import replaced_whole
from composer_memprof.messages import count_of, human_bytes, printable
from composer_memprof.report.html.bundle import bundle
from composer_memprof.report.html.packed import as_json, pack_text
from composer_memprof.report.html.pages import PAGES, policy_hash, source
from composer_memprof.report.html.run.charts import charts_of
from composer_memprof.report.html.run.opening import how_to_open
from composer_memprof.report.text.sentences.run_advice import advice_details, trial_notes
from composer_memprof.report.text.sentences.run_verdict import title, verdict

#: Most files that the page lists.
_FILES = 500


@dataclass(frozen=True)
class FileRow:
    """An artifact in the list: its link is relative to the page, and empty if the file is not there."""

    kind: str
    rank: str
    batch: str
    size: str
    name: str
    link: str
    opens: str


def write_run_page(report: RunReport, path: Path) -> None:
    """Write the page of ``report`` to ``path``. Links to artifacts are relative to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page = run_page(report, path.parent)
    with replaced_whole(path) as temporary:
        temporary.write_text(page, encoding='utf-8')


def run_page(report: RunReport, folder: Path) -> str:
    """The page as text, for a file in ``folder``."""
    charts = charts_of(report)
    plotly, script = _plotly(), bundle('run/script/main.js')
    style = source('page.css') + source('run/run.css')
    figures = {chart.key: {'data': chart.data, 'layout': chart.layout} for chart in charts}
    beside = None if report.files.stored else folder
    files = [_row(artifact, beside) for artifact in report.files.artifacts[:_FILES]]
    files += [_bare_row(path, beside) for path in report.files.bare]
    return PAGES.get_template('run/run.html.j2').render(
        title=title(report),
        # plotly adds style sheets of its own, so that styles can't be limited to a hash.
        script_hashes=' '.join(map(policy_hash, (plotly, script) if charts else (script,))),
        style=markupsafe.Markup(style),  # noqa: S704  # our own
        sentences=verdict(report),
        advice=[
            {'what': printable(each.what), 'details': list(map(printable, details)), 'code': each.code}
            for each, details in zip(report.advice, advice_details(report))
        ],
        trial_notes=list(map(printable, trial_notes(report))),
        charts=charts,
        figures=markupsafe.Markup(as_json(figures)),  # noqa: S704  # it has no character of HTML
        plotly=pack_text(plotly),
        script=markupsafe.Markup(script),  # noqa: S704  # our own
        files=files,
        files_left_out=max(len(report.files.artifacts) - _FILES, 0),
        facts=_facts(report),
        notes=list(map(printable, _notes(report))),
    )


@functools.cache
def _plotly() -> str:
    return (importlib.resources.files('plotly') / 'package_data' / 'plotly.min.js').read_text(encoding='utf-8')


def _row(artifact: Artifact, folder: Optional[Path]) -> FileRow:
    entry = artifact.entry
    size = entry.status if entry.bytes is None else human_bytes(entry.bytes)
    try:
        link = _link(artifact.checked_path(), folder)
    except ValueError:
        link = ''
    opens = how_to_open(entry.kind, printable(entry.path))
    return FileRow(printable(entry.kind), str(entry.rank), str(entry.batch), size, printable(entry.path), link, opens)


def _bare_row(path: Path, folder: Optional[Path]) -> FileRow:
    name = printable(str(path))
    size = human_bytes(path.stat().st_size) if path.is_file() else ''
    return FileRow('memory_snapshot', '', '', size, name, _link(path, folder), how_to_open('memory_snapshot', name))


def _link(path: Path, folder: Optional[Path]) -> str:
    """A relative address; empty if the page has no folder, or the file is not there. Everything but slashes is quoted, so that no name is a scheme."""
    if folder is None or not path.is_file():
        return ''
    return urllib.parse.quote(os.path.relpath(path, folder.resolve()))


def _notes(report: RunReport) -> list[str]:
    notes = report.lead.report.notes if report.lead is not None else []
    return [*notes, *(f'Not read: {each}' for each in report.unreadable)]


def _facts(report: RunReport) -> Sequence[tuple[str, str]]:
    lead = report.lead
    found: list[tuple[str, Any]] = [('composer_memprof', importlib.metadata.version('composer_memprof'))]
    if lead is not None:
        meta = lead.report.meta
        found += [
            ('torch of the run', meta.torch),
            ('recorded with', meta.recorder),
            ('simulated GPU', meta.simulated),
            *((f'allocator: {name}', value) for name, value in lead.report.settings.items()),
        ]
    found.append(('files', count_of(len(report.files.artifacts) + len(report.files.bare), 'file')))
    return [(name, printable(str(value))) for name, value in found if value not in ('', None)]
