"""The result of recording a model's memory by category and module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TOTAL = 'Total'

#: Bytes by category, and their sum as ``Total``.
Memory = Mapping[str, int]
#: Of each device, as torch prints it.
DeviceMemory = Mapping[str, Memory]


@dataclass(frozen=True)
class ModuleState:
    """The memory of the whole process as a module was entered, left, or at its most in between.

    ``call`` counts the module's calls from 1; ``state`` is as torch's trackers call it: ``Pre-Forward``,
    ``Peak-Forward``, ``Post-Forward``, ``Pre-Backward``, ``Peak-Backward``, ``Post-Backward``, and ``Pre-Forward-AC``,
    ``Post-Forward-AC`` where activation checkpointing runs a forward again.
    """

    state: str
    call: int
    memory: DeviceMemory


@dataclass(frozen=True)
class ModuleUse:
    """What one module holds, its submodules included.

    Args:
        name (str): dotted, in the model; '' is the model itself.
        type (str): the class.
        depth (int): the root module is at 1.
        calls (int): of its forward, those of checkpointing not counted.
        parameter_bytes (int): of its parameters on this rank, each once.
        buffer_bytes (int): the same for its buffers.
        activation_bytes (int): made in it and live when activations took most.
        own_activation_bytes (int): of these, made in itself and not in a submodule.
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
class ModuleMemory:
    """What a recording has found, in bytes.

    Args:
        categories (tuple[str]): in the order of reports.
        peak (DeviceMemory): at the moment when the total was highest, on each device.
        phases (Mapping[str, DeviceMemory]): the same within ``forward``, ``backward``, ``optimizer``, and
            ``between batches``.
        end (DeviceMemory): when the recording ended.
        root (str): dotted name of the root module in the model.
        modules (tuple[ModuleUse]): the root module and all in it that were called or hold something, outer ones first.
    """

    categories: tuple[str, ...]
    peak: DeviceMemory
    phases: Mapping[str, DeviceMemory]
    end: DeviceMemory
    root: str
    modules: tuple[ModuleUse, ...]
