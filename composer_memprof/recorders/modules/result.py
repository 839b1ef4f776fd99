"""The result of recording a model's memory by category and module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from composer_memprof.recorders.modules.allocator import NotSeen

TOTAL = 'Total'

#: Bytes by category, and their sum as ``Total``.
Memory = Mapping[str, int]
#: By device, as torch prints it.
DeviceMemory = Mapping[str, Memory]


@dataclass(frozen=True)
class ModuleState:
    """The memory of the whole process at one point of a module's forward or backward.

    Args:
        state (str): the point, as torch's trackers call it: ``Pre-Forward``, ``Peak-Forward``, ``Post-Forward``,
            ``Pre-Backward``, ``Peak-Backward``, ``Post-Backward``; ``Pre-Forward-AC`` and ``Post-Forward-AC`` where
            activation checkpointing runs a forward again.
        call (int): which time the module reaches this point, from 1.
        memory (DeviceMemory): in bytes.
    """

    state: str
    call: int
    memory: DeviceMemory


@dataclass(frozen=True)
class ModuleUse:
    """The memory of one module and its submodules.

    Args:
        name (str): dotted, in the model; '' is the model itself.
        type (str): the class.
        depth (int): the root module is at 1.
        calls (int): of its forward, without those of checkpointing.
        parameter_bytes (int): of its parameters on this rank, each once.
        buffer_bytes (int): the same for its buffers.
        activation_bytes (int): made in it and live when activations took the most memory.
        own_activation_bytes (int): of these, made in the module itself and not in a submodule.
        states (tuple): in order.
    """

    name: str
    type: str
    depth: int
    calls: int
    parameter_bytes: int
    buffer_bytes: int
    activation_bytes: int
    own_activation_bytes: int
    states: tuple[ModuleState, ...] = ()


@dataclass(frozen=True)
class HeldBefore:
    """What one holder had before the recording began and is no parameter, gradient, buffer, state or input.

    Args:
        name (str): of the holder; ``elsewhere`` for tensors that were found without one.
        device (str): as torch prints it.
        bytes (int): when the recording began.
        peak_bytes (int): of these, those that were still there when the device's total was highest. They are part of
            ``Other``.
        storages (int): how many.
        largest (int): bytes of the largest.
    """

    name: str
    device: str
    bytes: int
    peak_bytes: int
    storages: int
    largest: int


@dataclass(frozen=True)
class ModuleMemory:
    """Memory by device, category and module, in bytes.

    Args:
        categories (tuple[str]): in the order of reports.
        peak (DeviceMemory): when the total was highest, on each device.
        phases (Mapping[str, DeviceMemory]): the peak within ``forward``, ``backward``, ``optimizer``, and
            ``between batches``.
        end (DeviceMemory): when the recording ended.
        root (str): dotted name of the root module in the model.
        modules (tuple[ModuleUse]): the root module, and all in it that were called or have parameters or buffers; a
            module comes before its submodules.
        outside_activation_bytes (int): activations that were made in none of ``modules`` and were live when activations
            took the most memory. With the root module's they are all that were live then.
        before (tuple[HeldBefore]): what was there before, the largest first.
        not_seen (Mapping[str, NotSeen]): for each CUDA device what its allocator had handed out beyond the tensors.
    """

    categories: tuple[str, ...]
    peak: DeviceMemory
    phases: Mapping[str, DeviceMemory]
    end: DeviceMemory
    root: str
    modules: tuple[ModuleUse, ...]
    outside_activation_bytes: int = 0
    before: tuple[HeldBefore, ...] = ()
    not_seen: Mapping[str, NotSeen] = field(default_factory=dict)
