"""How exact a simulation is, as the table in the guide: ``make accuracy``.

Each training of ``workloads`` runs on a simulated GPU and, where there is one, on the real GPU. With ``ARGS='REAL.pickle
SCRIPT ARGUMENT…'`` it compares a memory snapshot from a real GPU with one that a script writes on the simulated GPU, to
the path that it gets as its last argument. ``ARGS=time`` compares step times with published ones (``time_accuracy``), ``ARGS=devices``
those of single GPUs (``device_accuracy``), and ``ARGS=breadth`` trains other projects' models (``tests.breadth``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

import torch

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.messages import human_bytes
from composer_memprof.simulated_gpu.devices import Device, UnknownDeviceError, device_names, find_device
from composer_memprof.simulated_gpu.environment import environment_with
from tests.benchmarks.simulation import device_accuracy, time_accuracy
from tests.benchmarks.simulation.workloads import WORKLOADS
from tests.breadth import run as breadth

_DEFAULT = 'h100-80gb'
Peaks = dict[str, int]


def main(arguments: list[str]) -> None:
    if arguments[:1] == ['time']:
        time_accuracy.main(arguments[1:])
        return
    if arguments[:1] == ['devices']:
        device_accuracy.main(arguments[1:])
        return
    if arguments[:1] == ['breadth']:
        breadth.main(arguments[1:])
        return
    device = _device()
    print(f'simulated: {device.key}, torch {torch.__version__}, CUDA {torch.version.cuda}')
    print('| training | allocated: simulated | real | error | reserved: simulated | real | error |')
    print('|---|---|---|---|---|---|---|')
    if arguments:
        _compare_snapshots(device, *arguments)
        return
    for name in WORKLOADS:
        command = [sys.executable, '-m', 'tests.benchmarks.simulation.workloads', name]
        simulated = _peaks(command, environment_with(device))
        real = _peaks(command, dict(os.environ)) if torch.cuda.is_available() else None
        print(_row(name, simulated, real), flush=True)


def _device() -> Device:
    """The kind of the GPU that is there, else the default."""
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        for key in device_names():
            if find_device(key).name == name:
                return find_device(key)
        raise UnknownDeviceError(f'{name} is not in the table of devices')
    return find_device(_DEFAULT)


def _peaks(command: list[str], environment: dict[str, str]) -> Optional[Peaks]:
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        print(ran.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return {'allocated': found['allocated'], 'reserved': found['reserved']}


def _compare_snapshots(device: Device, real: str, *command: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'simulated.pickle'
        words = [sys.executable, *command, str(path)]
        subprocess.run(words, env=environment_with(device), stdout=subprocess.DEVNULL, check=True)
        print(_row(Path(real).stem, _peaks_of(path), _peaks_of(Path(real))))


def _peaks_of(path: Path) -> Peaks:
    (device,) = report_on(load_snapshot(path)).devices
    return {'allocated': device.peak.bytes, 'reserved': device.reserved_peak or 0}


def _row(name: str, simulated: Optional[Peaks], real: Optional[Peaks]) -> str:
    cells = [name]
    for what in ('allocated', 'reserved'):
        cells.append(human_bytes(simulated[what]) if simulated else 'does not run')
        cells.append(human_bytes(real[what]) if real else 'not yet')
        cells.append(f'{simulated[what] / real[what] - 1:+.3%}' if simulated and real else '')
    return f'| {" | ".join(cells)} |'


if __name__ == '__main__':
    main(sys.argv[1:])
