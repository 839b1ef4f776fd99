"""What a person reads in a terminal."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from composer_memprof.analysis.run import Artifact, RunResult
from composer_memprof.messages import human_bytes

#: What to look at first, of what there is.
_NEXT = (
    ('memory_snapshot', '{command} inspect'),
    ('torch_profiler.summary', 'less -S'),
    ('fsdp_mem_tracker', 'less -S'),
    ('saved_tensors_hook.table', 'less -S'),
    ('host_rss', 'tail -n 1'),
)


def run_table(result: RunResult) -> RenderableType:
    """How the loss of a run went, and its artifacts."""
    folders = sorted({artifact.folder for artifact in result.artifacts})
    where = f' in {_short(folders[0])}' if len(folders) == 1 else ''
    table = Table(title=Text(f'What {result.run_name} left{where}'), title_justify='left')
    table.add_column('kind', overflow='fold')
    table.add_column('batch', justify='right')
    table.add_column('size', justify='right', no_wrap=True)
    table.add_column('path', overflow='fold')
    before = None
    for artifact in result.artifacts:
        entry = artifact.entry
        window, dot, part = entry.kind.partition('.')
        kind = f'  .{part}' if dot and before == (window, entry.batch, entry.rank) else entry.kind
        before = (window, entry.batch, entry.rank)
        size = entry.status if entry.bytes is None else human_bytes(entry.bytes)
        path = entry.path if where else str(_short(artifact.path))
        table.add_row(Text(kind), str(entry.batch), size, Text(path))
    lines: list[RenderableType] = []
    if result.first_loss is not None and result.last_loss is not None:
        lines.append(
            Text(f'loss: {result.first_loss:.3f} first, {result.last_loss:.3f} last, {result.batches} batches')
        )
    if result.artifacts:
        lines.append(table)
    return Group(*lines)


def next_command(artifacts: Sequence[Artifact]) -> Optional[str]:
    """The command that shows most of what the newest artifacts hold."""
    for kind, command in _NEXT:
        paths = [artifact.path for artifact in artifacts if artifact.entry.kind == kind]
        if paths:
            return f'{command.format(command=_own_command())} {shlex.quote(str(_short(paths[-1])))}'
    return None


def page_to_open(artifacts: Sequence[Artifact]) -> Optional[Path]:
    """The newest page, of a memory snapshot where there is one."""
    pages = [artifact for artifact in artifacts if artifact.path.suffix == '.html']
    pages = [page for page in pages if page.entry.kind.startswith('memory_snapshot')] or pages
    return _short(pages[-1].path) if pages else None


def _short(path: Path) -> Path:
    """Relative to where we are, if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _own_command() -> str:
    """How this command is called from here: a virtual environment that is not activated has it by its path alone."""
    if shutil.which('composer-memprof') is not None:
        return 'composer-memprof'
    beside_python = Path(sys.executable).parent / 'composer-memprof'
    return shlex.quote(str(_short(beside_python))) if beside_python.exists() else 'python -m composer_memprof.cli'
