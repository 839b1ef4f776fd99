"""The tables of a module memory recording: what torch's trackers print, as text, and the same as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

from composer_memprof.messages import allowed_are
from composer_memprof.recorders.modules.result import TOTAL, DeviceMemory, Memory, ModuleMemory, ModuleUse

#: Of one unit, in bytes.
UNITS = {'B': 1, 'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30}


@dataclass(frozen=True)
class Layout:
    """How the tables are laid out.

    Args:
        depth (int): how many levels of modules get their states listed, the root module being 1.
        units (str): of ``UNITS``.
        tabulate (bool): as tables, otherwise line by line.
        names (tuple): of the three parameters, as they are refused.

    Raises:
        ValueError: naming the parameter, the value and what is allowed.
    """

    depth: int
    units: str
    tabulate: bool
    names: InitVar[tuple[str, str, str]] = ('depth', 'units', 'tabulate')

    def __post_init__(self, names: tuple[str, str, str]) -> None:
        depth, units, tabulate = names
        if not isinstance(self.depth, int) or isinstance(self.depth, bool) or self.depth < 1:
            raise ValueError(f'{depth}={self.depth!r} is not allowed; it is a number of levels, from 1')
        if self.units not in UNITS:
            raise ValueError(f'{units}={self.units!r} is not allowed; {allowed_are(list(UNITS), self.units)}')
        if not isinstance(self.tabulate, bool):
            raise ValueError(f'{tabulate}={self.tabulate!r} is not allowed; it is true or false')


def write_json(memory: ModuleMemory, path: Path, **head: Any) -> None:
    """One object: ``head`` (rank, epoch, batch), then the recording, all in bytes."""
    document = {
        **head,
        'peak': memory.peak,
        'phases': memory.phases,
        'end': memory.end,
        'root_module': memory.root,
        'modules': [_module(module) for module in memory.modules],
    }
    path.write_text(json.dumps(document, indent=1) + '\n', encoding='utf-8')


def _module(module: ModuleUse) -> dict[str, Any]:
    return {**vars(module), 'states': [vars(state) for state in module.states]}


def write_log(memory: ModuleMemory, path: Path, *, model: str, layout: Layout) -> None:
    """The tables that torch's trackers print: the peak, then each module's states, down to the layout's depth.

    Args:
        model (str): the class that names the root module.
    """
    lines = _log(memory, model, layout.depth, layout.units, layout.tabulate)
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')


def _log(memory: ModuleMemory, model: str, depth: int, units: str, tabulate: bool) -> Iterable[str]:
    yield from _snapshot(memory.peak, units, tabulate)
    for phase, peak in memory.phases.items():
        yield ''
        yield f'Peak in {phase}'
        yield from _snapshot(peak, units, tabulate)
    shown = [module for module in memory.modules if module.depth <= depth]
    yield ''
    yield 'Modules, with all that is in them; activations when all of them took most'
    yield from _table(
        ['Module', 'Type', 'Calls', 'Parameters', 'Buffers', 'Activations'],
        [
            [
                *(_full_name(memory, model, module), module.type, str(module.calls)),
                *(_size(size, units) for size in _sizes_of(module)),
            ]
            for module in shown
        ],
    )
    for module in sorted(shown, key=lambda module: _natural(_full_name(memory, model, module))):
        yield ''
        yield f'Module:  {_full_name(memory, model, module)}'
        yield from _states(module, units, tabulate)


def _sizes_of(module: ModuleUse) -> tuple[int, int, int]:
    return module.parameter_bytes, module.buffer_bytes, module.activation_bytes


def _full_name(memory: ModuleMemory, model: str, module: ModuleUse) -> str:
    below = module.name.removeprefix(memory.root).strip('.') if memory.root else module.name
    return f'{model}.{below}' if below else model


def _natural(name: str) -> list[tuple[int, int, str]]:
    """So that ``blocks.2`` comes before ``blocks.10``."""
    return [(0, int(part), '') if part.isdigit() else (1, 0, part.lower()) for part in re.split('([0-9]+)', name)]


def _snapshot(memory: DeviceMemory, units: str, tabulate: bool) -> Iterable[str]:
    present = _present(memory)
    if not present:
        yield 'No memory tracked.'
    elif tabulate:
        rows = [[device, *(_size(size, units) for size in sizes.values())] for device, sizes in present.items()]
        yield from _table(['Device', *next(iter(present.values()))], rows)
    else:
        for device, sizes in present.items():
            yield f'Device: {device}'
            yield from (f'\t{category}: {_size(size, units)}' for category, size in sizes.items())


def _states(module: ModuleUse, units: str, tabulate: bool) -> Iterable[str]:
    if tabulate:
        rows = []
        for state in module.states:
            for device, sizes in _present(state.memory).items():
                cells = [_size(size, units) for size in sizes.values()]
                rows.append([f'{state.state} # {state.call}', device, *cells])
        if rows:
            names = next(iter(module.states[0].memory.values()))
            yield from _table(['State & Call', 'Device', *names], rows)
        return
    for name in dict.fromkeys(state.state for state in module.states):
        yield name
        for state in module.states:
            if state.state == name:
                yield f'# {state.call}:'
                yield from _snapshot(state.memory, units, tabulate)


def _present(memory: DeviceMemory) -> Mapping[str, Memory]:
    return {device: sizes for device, sizes in memory.items() if sizes[TOTAL] > 0}


def _size(size: int, units: str) -> str:
    return f'{size} B' if units == 'B' else f'{round(size / UNITS[units], 2)} {units}'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """A reStructuredText table, as these logs are known to have."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows)]
    rule = '  '.join('=' * width for width in widths)
    yield rule
    yield '  '.join(cell.ljust(width) for cell, width in zip(head, widths)).rstrip()
    yield rule
    for row in rows:
        yield '  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
    yield rule
