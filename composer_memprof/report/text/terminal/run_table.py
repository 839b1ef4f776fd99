"""The terminal output at the end of ``train``: the loss, the artifacts, and what to look at next."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Optional

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from composer_memprof.analysis.run import Artifact, LeftOutWindows, RunResult
from composer_memprof.messages import count_of, human_bytes, printable

#: A table has at most this many rows.
_MOST_ROWS = 100
#: Kinds of artifacts and the command that shows one, best first.
_NEXT = (
    ('memory_snapshot', '{command} inspect'),
    ('torch_profiler.summary', 'less -S'),
    ('fsdp_mem_tracker', 'less -S'),
    ('saved_tensors_hook.table', 'less -S'),
    ('host_rss', 'tail -n 1'),
)


def run_table(result: RunResult) -> RenderableType:
    """The first and last loss of a run, and its artifacts."""
    lines: list[RenderableType] = []
    if result.first_loss is not None and result.last_loss is not None:
        lines.append(
            Text(f'loss: {result.first_loss:.3f} first, {result.last_loss:.3f} last, {result.batches} batches')
        )
    if result.artifacts:
        lines.append(artifacts_table(result.artifacts, f'Artifacts of {result.run_name}'))
    return Group(*lines)


def artifacts_table(artifacts: Sequence[Artifact], title: str, named: Callable[[str], str] = str) -> Table:
    """A row for each artifact; of many ranks, a row for each kind and batch.

    Args:
        artifacts (Sequence[Artifact]): to list.
        title (str): of the table.
        named (Callable): puts the names that the user gave into a path. Default: it is left as it is.
    """
    folders = sorted({artifact.folder for artifact in artifacts})
    where = f' in {named(str(_short(folders[0])))}' if len(folders) == 1 else ''
    table = Table(title=Text(printable(title + where)), title_justify='left')
    table.add_column('kind', overflow='fold')
    table.add_column('batch', justify='right')
    many = len(artifacts) > _MOST_ROWS
    if many:
        table.add_column('files', justify='right')
    table.add_column('size', justify='right', no_wrap=True)
    table.add_column('path', overflow='fold')
    groups = _by_kind_and_batch(artifacts) if many else [[artifact] for artifact in artifacts]
    before = None
    for group in groups[:_MOST_ROWS]:
        entry = group[0].entry
        window, dot, part = entry.kind.partition('.')
        kind = f'  .{part}' if dot and before == (window, entry.batch, entry.rank) else entry.kind
        before = (window, entry.batch, entry.rank)
        sizes = [artifact.entry.bytes for artifact in group if artifact.entry.bytes is not None]
        size = human_bytes(sum(sizes)) if sizes else entry.status
        path = entry.path if where else named(str(_short(group[0].path)))
        count = [str(len(group))] if many else []
        more = ', …' if len(group) > 1 else ''
        table.add_row(Text(printable(kind)), str(entry.batch), *count, printable(size), Text(printable(path) + more))
    if len(groups) > _MOST_ROWS:
        table.caption = f'and {len(groups) - _MOST_ROWS} more rows; composer-memprof ls --json lists all files'
        table.caption_justify = 'left'
    return table


def left_out_sentences(left_out: Iterable[LeftOutWindows]) -> list[str]:
    """One for each kind of window, as of ``host_rss``. Every text is printable."""
    return [
        printable(
            f'{count_of(each.count, "window")} of {each.kind} {"was" if each.count == 1 else "were"} left out, because '
            f'{"; ".join(each.reasons)}.'
        )
        for each in left_out
    ]


def _by_kind_and_batch(artifacts: Sequence[Artifact]) -> list[list[Artifact]]:
    found: dict[tuple[str, int], list[Artifact]] = {}
    for artifact in artifacts:
        found.setdefault((artifact.entry.kind, artifact.entry.batch), []).append(artifact)
    return list(found.values())


def next_command(artifacts: Sequence[Artifact]) -> Optional[str]:
    """The command to run next, on the newest artifact of the best kind."""
    for kind, command in _NEXT:
        paths = [artifact.path for artifact in artifacts if artifact.entry.kind == kind]
        if paths:
            return f'{command.format(command=_own_command())} {shlex.quote(printable(str(_short(paths[-1]))))}'
    return None


def page_to_open(artifacts: Sequence[Artifact]) -> Optional[Path]:
    """The newest page, if possible of a memory snapshot."""
    pages = [artifact for artifact in artifacts if artifact.path.suffix == '.html']
    pages = [page for page in pages if page.entry.kind.startswith('memory_snapshot')] or pages
    return _short(pages[-1].path) if pages else None


def _short(path: Path) -> Path:
    """Relative to the current folder, if it is inside it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _own_command() -> str:
    """How to call this command: a virtual environment that is not activated needs its path."""
    if shutil.which('composer-memprof') is not None:
        return 'composer-memprof'
    beside_python = Path(sys.executable).parent / 'composer-memprof'
    return shlex.quote(str(_short(beside_python))) if beside_python.exists() else 'python -m composer_memprof'
