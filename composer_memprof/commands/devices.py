"""The simulated GPU that a command's options name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import typer

from composer_memprof.terminal import say

if TYPE_CHECKING:
    from composer_memprof.simulated_gpu.devices import Device


def device_named(gpu: Optional[str], memory: Optional[str] = None, compute_capability: str = '9.0') -> Device:
    """The device of these options. A mistake in them is one line and ends the command."""
    from composer_memprof.simulated_gpu.devices import UnknownDeviceError, device_asked_for

    try:
        return device_asked_for(gpu, memory, compute_capability)
    except UnknownDeviceError as error:
        say(str(error))
        raise typer.Exit(2) from None
