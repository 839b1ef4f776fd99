"""What a report on a run advises, tried: the run's config on the simulated GPU, with each change that has a trial."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, TextIO

import yaml

from composer_memprof.analysis.run_report.advice.kinds import Advice, in_order
from composer_memprof.analysis.run_report.report import RunReport
from composer_memprof.analysis.run_report.trials import Trials, TriedChange
from composer_memprof.plans.starting import NoPlanError, plan_of_process, planning_process
from composer_memprof.redaction import one_line
from composer_memprof.simulated_gpu.building import CannotSimulateError
from composer_memprof.simulated_gpu.devices import Device, device_by_key, device_of_memory, find_device
from composer_memprof.simulation.step_time import StepTime, time_in_words

#: Of a run without a device, as on a CPU.
_DEFAULT_GPU = 'h100-80gb'
_KIND = 'config'
#: What all trials of a run together may take.
SECONDS = 3600
#: The largest config that is read, in bytes.
_LARGEST_CONFIG = 1 << 20
#: Each alias of YAML may double the size of what is read, and the time of reading grows with the square of the depth.
_MOST_ALIASES, _DEEPEST = 20, 50


class _NotTrustedError(ValueError):
    """A run's own config names code that nobody has agreed to run."""


def with_tried_advice(
    report: RunReport,
    config: Optional[Path] = None,
    device: Optional[Device] = None,
    *,
    agrees: Callable[[list[str]], bool] = lambda names: False,
) -> RunReport:
    """The report with what each change came to on the simulated GPU, or with the reason why none could be tried.

    Runs the code that the config names. Of a run that ran out of memory all changes are tried, also together.

    Args:
        report (RunReport): on a run.
        config (Path, optional): of the run. Default: the one that ``composer-memprof train`` kept beside its files.
        device (Device, optional): Default: that of the run; of a run on a CPU an H100.
        agrees (Callable, optional): asked whether to import and call the dotted paths that a kept config names. Default:
            none of them, because a run's folder may come from anybody.
    """
    try:
        if config is None:
            config = _config_of(report)
            names = _foreign_names(config)
            if names and not agrees(names):
                raise _NotTrustedError(
                    f'the config in the folder of the run imports and calls {", ".join(names)}. If you trust the folder, '
                    'add --trust'
                )
        found = _trials(report, config, device or _device_of(report))
    except subprocess.TimeoutExpired:
        return replace(report, not_tried=f'it took longer than {SECONDS} s')
    except (CannotSimulateError, ValueError, OSError, subprocess.SubprocessError) as error:
        return replace(report, not_tried=' '.join(str(error).split())[:500])
    advice = [_tried(each, found) for each in report.advice]
    return replace(report, trials=found[0], advice=in_order(advice))


def _foreign_names(config: Path) -> list[str]:
    """The dotted paths in a config that may come from anybody.

    Raises:
        ValueError: if it can't be read, or would be far larger once it is.
    """
    from composer_memprof.config.foreign_names import foreign_names  # slow to import; most reports try nothing
    from composer_memprof.config.reading import load

    try:
        with config.open(encoding='utf-8', errors='replace') as file:
            _check_shape(file, config.name)
        return foreign_names(load(config))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f'{config.name} cannot be read: {one_line(error)}') from error


def _check_shape(file: TextIO, name: str) -> None:
    aliases = depth = 0
    for event in yaml.parse(file, Loader=yaml.SafeLoader):
        aliases += isinstance(event, yaml.AliasEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if aliases > _MOST_ALIASES or depth > _DEEPEST:
            raise ValueError(f'{name} is nested deeper, or refers to parts of itself more often, than a config does')


def _config_of(report: RunReport) -> Path:
    for artifact in reversed(report.files.artifacts):
        if artifact.entry.kind == _KIND and not report.files.stored:
            path = artifact.checked_path()
            if not path.is_file() or path.stat().st_size > _LARGEST_CONFIG:
                raise ValueError(f'{path.name} is no file of a config')
            return path
    raise ValueError(
        'the config of the run is not known; give it with --config CONFIG.yaml, or run the script itself with: '
        'composer-memprof simulate -- COMMAND'
    )


def _device_of(report: RunReport) -> Device:
    for summary in report.summaries.values():
        largest = summary.largest_device
        if summary.meta.simulated:
            return device_by_key(summary.meta.simulated)
        if largest is not None and largest.memory:
            return device_of_memory(largest.memory)
    return find_device(_DEFAULT_GPU)


_Found = tuple[Trials, dict[str, TriedChange]]


def _trials(report: RunReport, config: Path, device: Device) -> _Found:
    """The trials, and those of changes that a report advises, by the names that it uses."""
    ran_out = any(failure.oom is not None for failure in report.failures)
    advised = sorted({each.change for each in report.advice if each.change})
    settings = report.lead.report.settings.get('PYTORCH_CUDA_ALLOC_CONF', '') if report.lead is not None else None
    ranks = max(report.ranks, default=0) + 1 if report.files.artifacts else 1
    command, environment = planning_process(
        str(config), [], device, ranks, advised=None if ran_out else advised, allocator=settings
    )
    try:
        plan, _ = plan_of_process(command, environment, timeout=SECONDS)
    except NoPlanError as error:
        raise ValueError(error.said[-1] if error.said else f'the simulation ended with code {error.code}') from None
    base = plan['outcome']
    if base['error']:
        raise ValueError(f'the config does not run here: {base["error"]}')
    rows = [*plan['changes'], *([plan['combination']] if plan['combination'] else [])]
    time = _time(base)
    tried = [_change(row, base['allocated'], time) for row in rows]
    changes = tried[: len(plan['changes'])]
    trials = Trials(
        gpu=plan['gpu'],
        ranks=plan['ranks'],
        peak=base['allocated'],
        reserved=base['reserved'],
        available=plan['total'] - sum(plan['outside'].values()),
        fits=bool(plan['fits']),
        changes=changes,
        together=tried[-1] if plan['combination'] else None,
        step_seconds=None if time is None else time.step_seconds,
        speed=list(time_in_words(time, plan['gpu'])) if time is not None else [],
    )
    return trials, {row['advised_as']: change for row, change in zip(plan['changes'], changes) if row['advised_as']}


def _time(outcome: dict[str, Any]) -> Optional[StepTime]:
    return StepTime(**outcome['time']) if outcome['time'] else None


def _change(row: dict[str, Any], before: int, time_before: Optional[StepTime]) -> TriedChange:
    outcome = row['outcome']
    time = _time(outcome)
    slower = None
    if time is not None and time_before is not None:
        slower = time.seconds_per_sample / time_before.seconds_per_sample - 1
    return TriedChange(
        row['name'],
        row['how'],
        row['cost'],
        before,
        outcome['allocated'],
        bool(outcome['fits']),
        outcome['error'],
        slower,
    )


def _tried(advice: Advice, found: _Found) -> Advice:
    change = found[1].get(advice.change)
    if change is None:
        return advice
    frees = advice.frees if change.error else change.before - change.after
    return replace(advice, tried=change, frees=frees)
