"""The figures that a budget's runs had, in a small JSON file beside it: what grew is told by comparing with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

from composer_memprof.analysis.typed_json import FormatError, read_json
from composer_memprof.artifacts.writing.temporary_files import replaced_whole
from composer_memprof.budget.figures import Figures
from composer_memprof.budget.file import BudgetError

VERSION = 1
_MOST_BYTES = 64 << 20
#: A value whose JSON is shorter takes one line.
_WIDTH = 160


@dataclass(frozen=True)
class Recorded:
    """The figures of each run, by its name and the version of torch that ran."""

    version: int = VERSION
    runs: dict[str, dict[str, Figures]] = field(default_factory=dict)

    def of(self, name: str, torch: str) -> Optional[Figures]:
        return self.runs.get(name, {}).get(torch)

    def versions_of(self, name: str) -> list[str]:
        """The versions of torch with which a run was recorded."""
        return sorted(self.runs.get(name, {}))

    def with_figures(self, name: str, torch: str, figures: Figures) -> Recorded:
        of_run = {**self.runs.get(name, {}), torch: figures}
        return Recorded(VERSION, {**self.runs, name: dict(sorted(of_run.items()))})


def recorded_path(budget: Path) -> Path:
    """The file beside a budget.

    >>> recorded_path(Path('ci/memory_budget.yaml')).as_posix()
    'ci/memory_budget.recorded.json'
    """
    return budget.with_suffix('.recorded.json')


def read_recorded(budget: Path) -> Recorded:
    """What was recorded; nothing if the file is not there.

    Raises:
        BudgetError: if it can't be read.
    """
    path = recorded_path(budget)
    if not path.exists():
        return Recorded()
    try:
        found = read_json(Recorded, path, 'a file of recorded figures', _MOST_BYTES)
    except (FormatError, OSError) as error:
        raise BudgetError(str(error)) from None
    if found.version > VERSION:
        raise BudgetError(
            f'{path} has version {found.version}, known here is {VERSION}; install a newer composer_memprof'
        )
    return found


def write_recorded(budget: Path, recorded: Recorded) -> Path:
    """Write the file whole, in lines that a review can read; returns its path."""
    path = recorded_path(budget)
    with replaced_whole(path) as unfinished:
        unfinished.write_text('\n'.join(_lines(asdict(recorded))) + '\n', encoding='utf-8')
    return path


def _lines(value: Any, depth: int = 0, name: str = '') -> Iterator[str]:
    """JSON in lines: what is short takes one."""
    space, begin = ' ' * depth, f'{json.dumps(name)}: ' if name else ''
    short = json.dumps(value)
    if len(short) <= _WIDTH or not isinstance(value, (dict, list)):
        yield f'{space}{begin}{short}'
        return
    is_list = isinstance(value, list)
    parts: list[tuple[str, Any]] = [('', each) for each in value] if isinstance(value, list) else list(value.items())
    yield f'{space}{begin}{"[" if is_list else "{"}'
    for number, (key, each) in enumerate(parts, start=1):
        *lines, last = _lines(each, depth + 1, key)
        yield from lines
        yield last + (',' if number < len(parts) else '')
    yield f'{space}{"]" if is_list else "}"}'
