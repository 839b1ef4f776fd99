"""A module memory recording as text, in the form of torch's memory trackers, and as a document for JSON."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from composer_memprof.messages import check_one_of, check_switches, must_be
from composer_memprof.recorders.modules.names import OUTSIDE
from composer_memprof.recorders.modules.result import TOTAL, DeviceMemory, Memory, ModuleMemory, ModuleUse
from composer_memprof.report.text.tables.head import Head

#: The device that has no allocator to ask.
CPU = 'cpu'
#: Bytes per unit.
UNITS = {'B': 1, 'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30}


@dataclass(frozen=True)
class Layout:
    """How to print the recording.

    Args:
        depth (int): how many levels of modules are listed with their states; the root module is level 1.
        units (str): one of ``UNITS``.
        tabulate (bool): print tables; otherwise one value per line.
        names (tuple): what the caller calls these three parameters, for error messages.
        first_and_last (bool): of equal modules that are numbered in one parent, list the states of the first and the last.

    Raises:
        ValueError: for a value that is not allowed.
    """

    depth: int
    units: str
    tabulate: bool
    names: InitVar[tuple[str, str, str]] = ('depth', 'units', 'tabulate')
    first_and_last: bool = False

    def __post_init__(self, names: tuple[str, str, str]) -> None:
        depth, units, tabulate = names
        if not isinstance(self.depth, int) or isinstance(self.depth, bool) or self.depth < 1:
            raise must_be(depth, 'a number of levels, at least 1', self.depth)
        check_one_of(units, self.units, list(UNITS))
        check_switches(**{tabulate: self.tabulate})


def module_memory_dict(head: Head, memory: ModuleMemory) -> dict[str, Any]:
    """The recording as written to JSON, after the fields of ``head``. Sizes are bytes."""
    return {
        **head.as_dict(),
        'peak': memory.peak,
        'phases': memory.phases,
        'end': memory.end,
        'root_module': memory.root,
        'modules': [_module_dict(module) for module in memory.modules],
        'outside_activation_bytes': memory.outside_activation_bytes,
        'before': [vars(held) for held in memory.before],
        'not_seen': {device: vars(sizes) for device, sizes in memory.not_seen.items()},
    }


def _module_dict(module: ModuleUse) -> dict[str, Any]:
    return {**vars(module), 'states': [vars(state) for state in module.states]}


def module_memory_text(memory: ModuleMemory, model: str, layout: Layout) -> str:
    """The peak, the peak of each phase, and each module's states, down to the layout's depth.

    Args:
        memory (ModuleMemory): the recording.
        model (str): class of the root module; its name in the text.
        layout (Layout): how to print it.
    """
    return '\n'.join(_lines(memory, model, layout)) + '\n'


def _lines(memory: ModuleMemory, model: str, layout: Layout) -> Iterable[str]:
    units, tabulate = layout.units, layout.tabulate
    yield from _memory_lines(memory.peak, units, tabulate)
    yield from _before_lines(memory, units)
    yield from _not_seen_lines(memory, units)
    for phase, peak in memory.phases.items():
        yield ''
        yield f'Peak in {phase}'
        yield from _memory_lines(peak, units, tabulate)
    shown = [module for module in memory.modules if module.depth <= layout.depth]
    yield ''
    yield 'Modules, with their submodules; activations as of the peak of all activations'
    yield from _table(
        ['Module', 'Type', 'Calls', 'Parameters', 'Buffers', 'Activations'],
        [
            [
                *(_full_name(memory, model, module), module.type, str(module.calls)),
                *(_size(size, units) for size in _sizes_of(module)),
            ]
            for module in shown
        ]
        + [[OUTSIDE, '', '', '', '', _size(memory.outside_activation_bytes, units)]],
    )
    if layout.first_and_last:
        ends = _first_and_last(shown)
        if len(ends) < len(shown):
            yield f'Not listed below, but in the JSON: {len(shown) - len(ends)} modules between the first and the last block'
        shown = ends
    for module in sorted(shown, key=lambda module: _natural_order(_full_name(memory, model, module))):
        yield ''
        yield f'Module:  {_full_name(memory, model, module)}'
        yield from _states(module, units, tabulate)


def _first_and_last(modules: Sequence[ModuleUse]) -> list[ModuleUse]:
    """The modules without those between the first and the last of the same class that are numbered in one parent."""
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for module in modules:
        parent, _, last = module.name.rpartition('.')
        if last.isdigit():
            groups[parent, module.type].append(module.name)
    between = {name for names in groups.values() for name in names[1:-1]}
    return [module for module in modules if not _is_in(module.name, between)]


def _is_in(name: str, names: Collection[str]) -> bool:
    """Whether the module ``name`` is one of ``names`` or inside of one."""
    parts = name.split('.')
    return any('.'.join(parts[:count]) in names for count in range(1, len(parts) + 1))


def _before_lines(memory: ModuleMemory, units: str) -> Iterable[str]:
    if memory.before:
        yield ''
        yield 'Part of Other: what was there before the window, by what holds it'
        yield from _table(
            ['Held by', 'Device', 'Storages', 'Largest', 'At the start', 'At the peak'],
            [
                [
                    *(held.name, held.device, str(held.storages)),
                    *(_size(size, units) for size in (held.largest, held.bytes, held.peak_bytes)),
                ]
                for held in memory.before
            ],
        )


def _not_seen_lines(memory: ModuleMemory, units: str) -> Iterable[str]:
    """What an allocator knows beyond the total."""
    for device, sizes in memory.not_seen.items():
        yield ''
        yield f'Not seen on {device}, beyond the total: workspaces, and tensors that only C++ holds'
        yield f'\tAt the start: {_size(sizes.start, units)}'
        yield f'\tAt the peak: {_size(sizes.peak, units)}'
        if sizes.inside is not None:
            yield f"\tAbove that, at the allocator's own peak: {_size(sizes.inside, units)}"
    if CPU in memory.peak:
        yield ''
        yield (
            'Not seen on a CPU: what an operator holds while it runs, as the reordered weights of a convolution. '
            'MemorySnapshot shows it'
        )


def _sizes_of(module: ModuleUse) -> tuple[int, int, int]:
    return module.parameter_bytes, module.buffer_bytes, module.activation_bytes


def _full_name(memory: ModuleMemory, model: str, module: ModuleUse) -> str:
    below = module.name.removeprefix(memory.root).strip('.') if memory.root else module.name
    return f'{model}.{below}' if below else model


def _natural_order(name: str) -> list[tuple[int, int, str]]:
    """A sort key that puts ``blocks.2`` before ``blocks.10``."""
    return [(0, int(part), '') if part.isdigit() else (1, 0, part.lower()) for part in re.split('([0-9]+)', name)]


def _memory_lines(memory: DeviceMemory, units: str, tabulate: bool) -> Iterable[str]:
    present = _devices_in_use(memory)
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
            for device, sizes in _devices_in_use(state.memory).items():
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
                yield from _memory_lines(state.memory, units, tabulate)


def _devices_in_use(memory: DeviceMemory) -> Mapping[str, Memory]:
    return {device: sizes for device, sizes in memory.items() if sizes[TOTAL] > 0}


def _size(size: int, units: str) -> str:
    return f'{size} B' if units == 'B' else f'{round(size / UNITS[units], 2)} {units}'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """A reStructuredText table, as torch's trackers print."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows)]
    rule = '  '.join('=' * width for width in widths)
    yield rule
    yield '  '.join(cell.ljust(width) for cell, width in zip(head, widths)).rstrip()
    yield rule
    for row in rows:
        yield '  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
    yield rule
