"""What a person reads in a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from composer_memprof.runner import Artifact, RunResult
from composer_memprof.words import human_bytes


def run_table(result: RunResult) -> RenderableType:
    """The artifacts of a run, how the loss went, and the next command to try."""
    folders = sorted({artifact.folder for artifact in result.artifacts})
    where = f' in {_short(folders[0])}' if len(folders) == 1 else ''
    table = Table(title=f'What {result.run_name} left{where}', title_justify='left')
    table.add_column('kind', overflow='fold')
    table.add_column('batch', justify='right')
    table.add_column('size', justify='right', no_wrap=True)
    table.add_column('path', overflow='fold')
    for artifact in result.artifacts:
        entry = artifact.entry
        size = entry.status if entry.bytes is None else human_bytes(entry.bytes)
        table.add_row(entry.kind, str(entry.batch), size, entry.path if where else str(_short(artifact.path)))
    lines: list[RenderableType] = []
    if result.first_loss is not None and result.last_loss is not None:
        lines.append(
            Text(f'loss: {result.first_loss:.3f} first, {result.last_loss:.3f} last, {result.batches} batches')
        )
    if result.artifacts:
        lines.append(table)
    command = next_command(result.artifacts)
    if command is not None:
        lines.append(Text(f'Next, try: {command}'))
    return Group(*lines)


def next_command(artifacts: Sequence[Artifact]) -> Optional[str]:
    """The command that shows most of what the newest artifacts hold."""
    for kind, command in (('torch_profiler.summary', 'less -S'), ('host_rss', 'tail -n 1')):
        paths = [artifact.path for artifact in artifacts if artifact.entry.kind == kind]
        if paths:
            return f'{command} {shlex.quote(str(_short(paths[-1])))}'
    return None


def _short(path: Path) -> Path:
    """Relative to where we are, if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
