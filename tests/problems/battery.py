"""All problems and healthy runs, and whether the report on one says what it should."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.report.text.sentences.run_verdict import verdict
from tests.problems import (
    failed,
    in_own_loop,
    kept,
    kept_in_containers,
    kept_on_purpose,
    killed,
    on_host,
    on_ranks,
    parts,
    slow,
    slow_parts_of_composer,
)
from tests.problems.gpu import leaks_on_gpu, on_gpu
from tests.problems.problem import Problem
from tests.support.run_reports import reported

PROBLEMS: dict[str, Problem] = {
    **failed.PROBLEMS,
    **kept.PROBLEMS,
    **kept_in_containers.PROBLEMS,
    **slow.PROBLEMS,
    **slow_parts_of_composer.PROBLEMS,
    **in_own_loop.PROBLEMS,
    **on_host.PROBLEMS,
    **killed.PROBLEMS,
    **on_gpu.PROBLEMS,
    **leaks_on_gpu.PROBLEMS,
    **parts.PROBLEMS,
    **on_ranks.PROBLEMS,
}
HEALTHY: dict[str, Callable[[], None]] = {
    **kept_on_purpose.HEALTHY,
    **slow.HEALTHY,
    **slow_parts_of_composer.HEALTHY,
    **in_own_loop.HEALTHY,
    **on_host.HEALTHY,
    **on_gpu.HEALTHY,
    **parts.HEALTHY,
    **on_ranks.HEALTHY,
}
_UNITS = {'B': 1, 'KiB': 1 << 10, 'MiB': 1 << 20, 'GiB': 1 << 30}
#: The changes that make room where the device is the host, whose limit is not known: each has a price that the user may want to know.
_OFFERS = ('Checkpoint the activations', 'Return less from forward', 'Set PYTORCH_CUDA_ALLOC_CONF')


def what_is_wrong_with_the_answer(problem: Problem) -> str:
    """Train in the current folder, and read the first sentence and the first change; ``''`` if both are right."""
    problem.run()
    report = reported(Path('test-run'))
    first = verdict(report)[0].text
    missing = [words for words in problem.says if words not in first]
    if missing:
        return f'the first sentence has not {missing}: {first}'
    change = report.advice[0].what if report.advice else ''
    if problem.change not in change:
        return f'the first change is not {problem.change!r}: {change}'
    if problem.bytes and all(abs(size - problem.bytes) > problem.bytes / 10 for size in _sizes_in(first)):
        return f'the first sentence has not {problem.bytes} bytes: {first}'
    return ''


def false_alarm(run: Callable[[], None]) -> str:
    """Train in the current folder; what the report finds wrong with the run, ``''`` if nothing."""
    run()
    report = reported(Path('test-run'))
    device = None if report.lead is None else report.lead.report.largest_device
    allowed = _OFFERS if device is None or device.memory is None else ()
    offers = [each.what for each in report.advice if not each.what.startswith(allowed)]
    return '; '.join([*(str(cause) for cause in report.causes), *offers, *_failures(report)])


def _failures(report: RunReport) -> list[str]:
    return [sentence.text for sentence in verdict(report) if sentence.about in ('failure', 'growth')]


def _sizes_in(text: str) -> list[float]:
    return [float(size) * _UNITS[unit] for size, unit in re.findall(r'(\d+(?:\.\d+)?) ([KMG]iB|B)\b', text)]
