"""The simulated GPU that a command's options name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import typer

from composer_memprof.terminal import say

if TYPE_CHECKING:
    from composer_memprof.simulated_gpu.devices import Device


def device_named(gpu: Optional[str], memory: Optional[str] = None, compute_capability: str = '9.0') -> Device:
    """The device of these options. A mistake in them is one line and ends the command."""
    from composer_memprof.simulated_gpu import devices

    try:
        if gpu is None and memory is not None:
            return devices.device_by_hand(memory, compute_capability)
        named = devices.find_device(gpu or 'h100-80gb')
        return named if memory is None else devices.with_memory(named, memory)
    except devices.UnknownDeviceError as error:
        say(str(error))
        raise typer.Exit(2) from None
