"""Runs one test in a process of its own, and takes over its reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from composer_memprof.artifacts.writing.temporary_folders import temporary_folder

#: Options of the run as a whole, which a process of one test has not: files that are written, workers, stops.
_NOT_PASSED: dict[str, Any] = {
    'xmlpath': None,
    'basetemp': None,
    'usepdb': False,
    'numprocesses': None,
    'maxprocesses': None,
    'dist': 'no',
    'tx': [],
    'px': [],
    'rsyncdir': [],
    'looponfail': False,
    'maxfail': 0,
    'keyword': '',
    'markexpr': '',
    'deselect': None,
    'lf': False,
    'failedfirst': False,
    'newfirst': False,
    'stepwise': False,
    'cacheclear': False,
    'log_file': None,
    'htmlpath': None,
}
_TAIL = 4000


def run(item: pytest.Item, environment: dict[str, str]) -> list[pytest.TestReport]:
    """The reports of the test: of its setup, the test itself and its teardown."""
    with temporary_folder('pytest') as folder:
        request, answer, output = folder / 'request.json', folder / 'reports.jsonl', folder / 'output'
        request.write_text(json.dumps(_request(item, answer)))
        command = [sys.executable, '-m', 'composer_memprof.testing.child', str(request)]
        with output.open('wb') as log:
            code = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            ).returncode
        lines = answer.read_text().splitlines() if answer.exists() else []
        reports = [_report(item, json.loads(line)) for line in lines]
        if not any(report.when == 'teardown' for report in reports):
            ended = f'was killed by signal {-code}' if code < 0 else f'ended with code {code}'
            text = output.read_text(errors='replace')[-_TAIL:]
            reports.append(failed(item, f"the test's own process {ended}, and printed:\n{text}", 'call'))
    return reports


def failed(item: pytest.Item, text: str, when: Literal['setup', 'call', 'teardown']) -> pytest.TestReport:
    """A report of a test that could not end by itself."""
    return pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1), 'failed', text, when)


def _request(item: pytest.Item, answer: Path) -> dict[str, Any]:
    options = {**vars(item.config.option), **_NOT_PASSED}
    return {
        'options': {name: value for name, value in options.items() if name != 'file_or_dir' and _is_plain(value)},
        'test': item.nodeid,
        'rootdir': str(item.config.rootpath),
        'folder': str(item.config.invocation_params.dir),
        'path': [str(each) for each in sys.path],
        'reports': str(answer),
    }


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _report(item: pytest.Item, data: dict[str, Any]) -> pytest.TestReport:
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
    assert isinstance(report, pytest.TestReport)
    report.nodeid, report.location = item.nodeid, item.location
    return report
