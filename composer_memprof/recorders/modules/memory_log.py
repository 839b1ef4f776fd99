"""A recording of storages, as columns, and what is read off it: peaks, phases, modules.

Time is counted in ticks: one for each operation, just after it, and one for each module entered or left. A block is
one storage at one size, live from the tick it was made at until before the one it was freed by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
import torch
from torch import nn

from composer_memprof.recorders.modules.result import TOTAL, DeviceMemory, Memory, ModuleMemory, ModuleState, ModuleUse


@dataclass
class _Module:
    name: str
    type: str
    parent: int
    parameter_bytes: int
    buffer_bytes: int
    marks: list[tuple[str, int]] = field(default_factory=list)


class MemoryLog:
    """Filled by the recorder, line by line."""

    def __init__(self, names: Sequence[str], modules: Sequence[tuple[str, nn.Module]], root: str) -> None:
        self.names = tuple(names)
        self.root = root
        self.tick = 0
        #: The module at work: number in ``modules``, -1 for none.
        self.module = -1
        #: Of each storage, the category; may be settled long after.
        self.categories: list[int] = []
        self._storages: list[int] = []
        self._devices: list[int] = []
        self._sizes: list[int] = []
        self._born: list[int] = []
        self._died: list[int] = []
        self._makers: list[int] = []
        self._phases: list[tuple[int, str]] = [(0, 'forward')]
        self._backward: list[tuple[int, int]] = []
        self._modules = _tree(modules, root)

    def open(self, storage: int, device: int, size: int, tick: int) -> int:
        """A block of ``size`` bytes is there from ``tick`` on; returns its number."""
        self._storages.append(storage)
        self._devices.append(device)
        self._sizes.append(size)
        self._born.append(tick)
        self._died.append(-1)
        self._makers.append(self.module)
        return len(self._sizes) - 1

    def close(self, block: int, tick: int) -> None:
        self._died[block] = tick

    def begin_phase(self, name: str) -> None:
        if self._phases[-1][1] != name:
            self._phases.append((self.tick, name))

    def mark(self, module: int, state: str) -> None:
        """A module is entered or left: a moment of its own."""
        self.tick += 1
        self._modules[module].marks.append((state, self.tick))
        if state == 'Pre-Forward':
            self.module = module

    def mark_backward(self) -> None:
        """An operation of a module's backward has been run."""
        if not self._backward or self._backward[-1][1] != self.module:
            self._backward.append((self.tick, self.module))

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(self, devices: Sequence[str], depth: Optional[int] = None) -> ModuleMemory:
        """Find the peaks.

        Args:
            devices (Sequence[str]): their names, by number.
            depth (int, optional): modules deeper than that come without states. None: all have them.
        """
        self.tick += 1  # what was freed since the last operation is gone at the end
        timelines = {name: _Timeline(self, number) for number, name in enumerate(devices)}
        phase_of_tick = self._phase_of_tick()
        phases: dict[str, DeviceMemory] = {}
        for phase in dict.fromkeys(name for _, name in self._phases):
            ticks = np.flatnonzero(phase_of_tick == phase)
            if len(ticks):
                phases[phase] = {name: line.at(line.highest_of(ticks)) for name, line in timelines.items()}
        return ModuleMemory(
            categories=self.names,
            peak={name: line.at(int(line.total.argmax())) for name, line in timelines.items()},
            phases=phases,
            end={name: line.at(self.tick) for name, line in timelines.items()},
            root=self.root,
            modules=self._module_uses(timelines, depth),
        )

    def _phase_of_tick(self) -> np.ndarray:
        begins = np.array([tick for tick, _ in self._phases])
        names = np.array([name for _, name in self._phases])
        return names[np.searchsorted(begins, np.arange(self.tick + 1), side='right') - 1]

    def _module_uses(self, timelines: Mapping[str, _Timeline], deepest: Optional[int]) -> tuple[ModuleUse, ...]:
        own = np.zeros(len(self._modules), dtype=np.int64)
        for line in timelines.values():
            own += line.activations_by_maker(len(self._modules))
        within = own.copy()
        for number in range(len(self._modules) - 1, 0, -1):  # parents come before their children
            within[self._modules[number].parent] += within[number]
        backward = self._backward_spans()
        uses = []
        for number, module in enumerate(self._modules):
            calls = sum(state == 'Pre-Forward' for state, _ in module.marks)
            if not (calls or module.parameter_bytes or module.buffer_bytes):
                continue
            depth = len(list(self._outwards(number)))
            spans = backward.get(number, [])
            use = ModuleUse(
                name=module.name,
                type=module.type,
                depth=depth,
                calls=calls,
                parameter_bytes=module.parameter_bytes,
                buffer_bytes=module.buffer_bytes,
                activation_bytes=int(within[number]),
                own_activation_bytes=int(own[number]),
                states=_states(module.marks, spans, timelines) if deepest is None or depth <= deepest else (),
            )
            uses.append(use)
        return tuple(uses)

    def _outwards(self, module: int) -> Iterator[int]:
        """The module, what holds it, and so on to the root."""
        while module >= 0:
            yield module
            module = self._modules[module].parent

    def _backward_spans(self) -> dict[int, list[tuple[int, int]]]:
        """Of each module the first and the last tick of each of its backward passes, its submodules' included."""
        ends = [tick - 1 for tick, _ in self._backward[1:]] + [self.tick]
        passes = [tick for tick, name in self._phases if name == 'backward']
        phase_ends = {
            tick: following - 1 for (tick, name), (following, _) in zip(self._phases, self._phases[1:]) if name
        }
        spans: dict[int, list[tuple[int, int]]] = {}
        for (first, innermost), end in zip(self._backward, ends):
            begin = passes[int(np.searchsorted(passes, first, side='right')) - 1]
            last = min(end, phase_ends.get(begin, self.tick))
            for module in self._outwards(innermost):
                known = spans.setdefault(module, [])
                if known and known[-1][0] >= begin:
                    known[-1] = (known[-1][0], last)
                else:
                    known.append((first, last))
        return spans


class _Timeline:
    """One device's memory over the ticks."""

    def __init__(self, log: MemoryLog, device: int) -> None:
        mine = np.flatnonzero(np.array(log._devices, dtype=np.int64) == device)
        end = log.tick + 1
        died = np.array(log._died, dtype=np.int64)[mine]
        self._names = log.names
        self._sizes = np.array(log._sizes, dtype=np.int64)[mine]
        self._born = np.array(log._born, dtype=np.int64)[mine]
        self._died = np.where(died < 0, end, np.minimum(died, end))
        self._categories = np.array(log.categories, dtype=np.int64)[np.array(log._storages, dtype=np.int64)[mine]]
        self._makers = np.array(log._makers, dtype=np.int64)[mine]
        change = np.zeros((len(self._names), end + 1), dtype=np.int64)
        np.add.at(change, (self._categories, self._born), self._sizes)
        np.subtract.at(change, (self._categories, self._died), self._sizes)
        self._bytes = np.cumsum(change, axis=1, out=change)
        self.total = self._bytes[:, :end].sum(axis=0)

    def highest(self, first: int, last: int) -> int:
        """The tick from ``first`` to ``last`` at which the total is highest."""
        return first + int(self.total[first : last + 1].argmax())

    def highest_of(self, ticks: np.ndarray) -> int:
        return int(ticks[self.total[ticks].argmax()])

    def at(self, tick: int) -> Memory:
        memory = {name: int(size) for name, size in zip(self._names, self._bytes[:, tick])}
        memory[TOTAL] = sum(memory.values())
        return memory

    def activations_by_maker(self, modules: int) -> np.ndarray:
        """Bytes of activations by the module that made them, at the moment when they took most."""
        activation = self._names.index('Activation')
        tick = int(self._bytes[activation].argmax())
        live = (self._categories == activation) & (self._born <= tick) & (tick < self._died) & (self._makers >= 0)
        by_maker = np.zeros(modules, dtype=np.int64)
        np.add.at(by_maker, self._makers[live], self._sizes[live])
        return by_maker


def _states(
    marks: Sequence[tuple[str, int]], spans: Sequence[tuple[int, int]], timelines: Mapping[str, _Timeline]
) -> tuple[ModuleState, ...]:
    def at(tick: int) -> DeviceMemory:
        return {name: line.at(tick) for name, line in timelines.items()}

    def peak(first: int, last: int) -> DeviceMemory:
        return {name: line.at(line.highest(first, last)) for name, line in timelines.items()}

    found: list[tuple[int, str, DeviceMemory]] = []
    entered: Optional[int] = None
    for state, tick in marks:
        found.append((tick, state, at(tick)))
        if state == 'Pre-Forward':
            entered = tick
        elif state == 'Post-Forward' and entered is not None:
            found.insert(len(found) - 1, (tick, 'Peak-Forward', peak(entered, tick)))
            entered = None
    for first, last in spans:
        found.append((first, 'Pre-Backward', at(first - 1)))
        found.append((last, 'Peak-Backward', peak(first, last)))
        found.append((last, 'Post-Backward', at(last)))
    found.sort(key=lambda state: state[0])
    calls: dict[str, int] = {}
    states = []
    for _, state, memory in found:
        calls[state] = calls.get(state, 0) + 1
        states.append(ModuleState(state, calls[state], memory))
    return tuple(states)


def _tree(modules: Sequence[tuple[str, nn.Module]], root: str) -> list[_Module]:
    numbers = {name: number for number, (name, _) in enumerate(modules)}
    tree = []
    for name, module in modules:
        parent = numbers.get(name.rpartition('.')[0], 0) if name else -1
        tree.append(
            _Module(
                name=f'{root}.{name}'.strip('.'),
                type=type(module).__name__,
                parent=parent,
                parameter_bytes=_bytes_of(module.parameters()),
                buffer_bytes=_bytes_of(module.buffers()),
            )
        )
    return tree


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    total = 0
    for tensor in tensors:
        local = getattr(tensor, '_local_tensor', tensor)  # of a DTensor, this rank's shard
        total += local.numel() * local.element_size()
    return total
