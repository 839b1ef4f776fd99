"""The log of a recording: storages, phases, and modules entered and left, as columns.

Time is counted in ticks: one for each operation, just after it, and one for each module entered or left. A block is
one storage at one size. It is live from the tick at which it was made until just before the tick at which it is freed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
import torch
from torch import nn

from composer_memprof.recorders.modules.categories import OTHER
from composer_memprof.recorders.modules.names import class_name
from composer_memprof.recorders.modules.result import DeviceMemory, HeldBefore, ModuleMemory, ModuleUse
from composer_memprof.recorders.modules.timeline import TrackerTimeline, states_of
from composer_memprof.recorders.torch_private.tensors import local_tensor
from composer_memprof.vocabulary import BACKWARD, FORWARD


@dataclass
class _LoggedModule:
    name: str
    type: str
    parent: int
    parameter_bytes: int
    buffer_bytes: int
    #: (state, tick)
    states: list[tuple[str, int]] = field(default_factory=list)


class MemoryLog:
    """Filled while recording, then read once.

    Args:
        categories (Sequence[str]): their names; a category's code is its index.
        modules (Sequence): dotted names in the root module, and modules. A module's number is its index.
        root (str): dotted name of the root module in the model.
    """

    def __init__(self, categories: Sequence[str], modules: Sequence[tuple[str, nn.Module]], root: str) -> None:
        self.names = tuple(categories)
        self.root = root
        self.tick = 0
        #: The number of the module that the current operation belongs to, -1 for none.
        self.module = -1
        #: The category of each storage. It may be changed until the log is read.
        self.categories: list[int] = []
        #: Holders, by number, of the storages that were there before the recording. May be changed as well.
        self.before: dict[int, str] = {}
        self._storages: list[int] = []
        self._devices: list[int] = []
        self._sizes: list[int] = []
        self._born: list[int] = []
        self._died: list[int] = []
        self._makers: list[int] = []
        self._phases: list[tuple[int, str]] = [(0, FORWARD)]
        self._backward: list[tuple[int, int]] = []
        self._modules = _logged_modules(modules, root)

    def open_block(self, storage: int, device: int, size: int, tick: int) -> int:
        """A block of ``size`` bytes is live from ``tick`` on; returns its number."""
        self._storages.append(storage)
        self._devices.append(device)
        self._sizes.append(size)
        self._born.append(tick)
        self._died.append(-1)
        self._makers.append(self.module)
        return len(self._sizes) - 1

    def close_block(self, block: int, tick: int) -> None:
        """The block is freed at ``tick``."""
        self._died[block] = tick

    def begin_phase(self, name: str) -> None:
        """``name`` of ``vocabulary.PHASES`` starts now."""
        if self._phases[-1][1] != name:
            self._phases.append((self.tick, name))

    def enter_state(self, module: int, state: str) -> None:
        """A module is entered or left, which takes a tick."""
        self.tick += 1
        self._modules[module].states.append((state, self.tick))
        if state == 'Pre-Forward':
            self.module = module

    def note_backward(self) -> None:
        """An operation of the current module's backward ran."""
        if not self._backward or self._backward[-1][1] != self.module:
            self._backward.append((self.tick, self.module))

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(self, devices: Sequence[str], depth: Optional[int] = None) -> ModuleMemory:
        """Find the peaks.

        Args:
            devices (Sequence[str]): their names, by number.
            depth (int, optional): modules deeper than this get no states. None: all get them.
        """
        self.tick += 1  # so that blocks freed after the last operation are not live at the end
        self._put_older_blocks_first()
        timelines = {name: self._timeline(number) for number, name in enumerate(devices)}
        uses, outside = self._module_uses(timelines, depth)
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
            modules=uses,
            outside_activation_bytes=outside,
            before=self._held_before(timelines),
        )

    def _put_older_blocks_first(self) -> None:
        waiting = set(self.before)
        for block, storage in enumerate(self._storages):
            if storage in waiting:
                waiting.remove(storage)
                self._born[block] = 0

    def _held_before(self, timelines: Mapping[str, TrackerTimeline]) -> tuple[HeldBefore, ...]:
        other = self.names.index(OTHER)
        names = list(timelines)
        peaks = [int(line.total.argmax()) for line in timelines.values()]
        sizes: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for block, storage in enumerate(self._storages):
            if storage in self.before and self._born[block] == 0 and self.categories[storage] == other:
                device, size = self._devices[block], self._sizes[block]
                lives_on = self._died[block] < 0 or self._died[block] > peaks[device]
                sizes.setdefault((self.before[storage], device), []).append((size, size * lives_on))
        held = [
            HeldBefore(
                name=holder,
                device=names[device],
                bytes=sum(size for size, _ in each),
                peak_bytes=sum(at_peak for _, at_peak in each),
                storages=len(each),
                largest=max(size for size, _ in each),
            )
            for (holder, device), each in sizes.items()
        ]
        return tuple(sorted(held, key=lambda each: -each.bytes))

    def _timeline(self, device: int) -> TrackerTimeline:
        rows = np.flatnonzero(np.array(self._devices, dtype=np.int64) == device)
        storages = np.array(self._storages, dtype=np.int64)[rows]
        return TrackerTimeline(
            names=self.names,
            end=self.tick + 1,
            sizes=np.array(self._sizes, dtype=np.int64)[rows],
            born=np.array(self._born, dtype=np.int64)[rows],
            died=np.array(self._died, dtype=np.int64)[rows],
            categories=np.array(self.categories, dtype=np.int64)[storages],
            makers=np.array(self._makers, dtype=np.int64)[rows],
        )

    def _phase_of_tick(self) -> np.ndarray:
        begins = np.array([tick for tick, _ in self._phases])
        names = np.array([name for _, name in self._phases])
        return names[np.searchsorted(begins, np.arange(self.tick + 1), side='right') - 1]

    def _module_uses(
        self, timelines: Mapping[str, TrackerTimeline], deepest: Optional[int]
    ) -> tuple[tuple[ModuleUse, ...], int]:
        """The modules, and the bytes of activations that were made in none of them."""
        own_and_outside = np.zeros(len(self._modules) + 1, dtype=np.int64)
        for line in timelines.values():
            own_and_outside += line.activations_by_maker(len(self._modules))
        own, outside = own_and_outside[:-1], int(own_and_outside[-1])
        inclusive = own.copy()
        for number in range(len(self._modules) - 1, 0, -1):  # parents come before their submodules
            inclusive[self._modules[number].parent] += inclusive[number]
        backward = self._backward_spans()
        uses = []
        for number, module in enumerate(self._modules):
            calls = sum(state == 'Pre-Forward' for state, _ in module.states)
            if not (calls or module.parameter_bytes or module.buffer_bytes):
                continue
            depth = len(list(self._with_ancestors(number)))
            spans = backward.get(number, [])
            use = ModuleUse(
                name=module.name,
                type=module.type,
                depth=depth,
                calls=calls,
                parameter_bytes=module.parameter_bytes,
                buffer_bytes=module.buffer_bytes,
                activation_bytes=int(inclusive[number]),
                own_activation_bytes=int(own[number]),
                states=states_of(module.states, spans, timelines) if deepest is None or depth <= deepest else (),
            )
            uses.append(use)
        return tuple(uses), outside

    def _with_ancestors(self, module: int) -> Iterator[int]:
        """The module, its parent, and so on to the root."""
        while module >= 0:
            yield module
            module = self._modules[module].parent

    def _backward_spans(self) -> dict[int, list[tuple[int, int]]]:
        """For each module the first and last tick of each of its backward passes, with its submodules' operations."""
        ends = [tick - 1 for tick, _ in self._backward[1:]] + [self.tick]
        passes = [tick for tick, name in self._phases if name == BACKWARD]
        phase_ends = {
            tick: following - 1 for (tick, name), (following, _) in zip(self._phases, self._phases[1:]) if name
        }
        spans: dict[int, list[tuple[int, int]]] = {}
        for (first, innermost), end in zip(self._backward, ends):
            begin = passes[int(np.searchsorted(passes, first, side='right')) - 1]
            last = min(end, phase_ends.get(begin, self.tick))
            for module in self._with_ancestors(innermost):
                known = spans.setdefault(module, [])
                if known and known[-1][0] >= begin:
                    known[-1] = (known[-1][0], last)
                else:
                    known.append((first, last))
        return spans


def _logged_modules(modules: Sequence[tuple[str, nn.Module]], root: str) -> list[_LoggedModule]:
    numbers = {name: number for number, (name, _) in enumerate(modules)}
    logged = []
    for name, module in modules:
        parent = numbers.get(name.rpartition('.')[0], 0) if name else -1
        logged.append(
            _LoggedModule(
                name=f'{root}.{name}'.strip('.'),
                type=class_name(module),
                parent=parent,
                parameter_bytes=_bytes_of(module.parameters()),
                buffer_bytes=_bytes_of(module.buffers()),
            )
        )
    return logged


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(local.numel() * local.element_size() for local in map(local_tensor, tensors))
