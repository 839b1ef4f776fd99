"""A measurement in a forked process, which stands for a process on one kind of GPU."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any, Optional

from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.outside import outside_of
from composer_memprof.simulated_gpu.this_process import VARIABLE, as_variable


def in_a_fork(measure: Callable[[], dict[str, Any]]) -> Optional[dict[str, Any]]:
    """What ``measure`` returns in a forked process, as JSON has it; None if it fails, which the process prints."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writing, 'w') as answer:
                json.dump(measure(), answer)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def become(gpu: str, devices: int, ranks: int) -> None:
    """Let this process, which has not used its GPU yet, have one of this kind.

    Args:
        devices (int): of the machine.
        ranks (int): of the training.
    """
    device = find_device(gpu)
    figures: dict[str, Any] = {**device.figures(), 'key': device.key, 'devices': devices}
    figures['outside'] = outside_of(device, ranks).bytes
    os.environ[VARIABLE] = as_variable(figures)
