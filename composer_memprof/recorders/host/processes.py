"""Readings of host memory: of processes and of the machine.

Sizes are bytes. A value that the platform does not provide is left out, or None.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import psutil
import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_HAS_PROC = sys.platform == 'linux' and os.path.exists('/proc/self/statm')
_PAGE = os.sysconf('SC_PAGE_SIZE') if _HAS_PROC else 0
#: The name of DataLoader worker processes, set by torch 2.6 and later.
_WORKER_NAME = 'pt_data_worker'


@dataclass(frozen=True)
class Usage:
    """Memory of one process: resident (``rss``), virtual (``vms``), and the shared part of the resident."""

    rss: int
    vms: int
    shared: int


class ProcessReader:
    """Reads one process's memory repeatedly. On Linux it keeps a file in /proc open, and a reading takes 2 us.

    Args:
        pid (int, optional): of the process. Default: this process.

    Raises:
        ProcessLookupError: if the process has ended.
    """

    def __init__(self, pid: Optional[int] = None) -> None:
        self.pid = os.getpid() if pid is None else pid
        self._file = -1
        self._process: Optional[psutil.Process] = None
        if _HAS_PROC:
            self._file = os.open(f'/proc/{self.pid}/statm', os.O_RDONLY)
        else:
            try:
                self._process = psutil.Process(self.pid)
            except psutil.Error as error:
                raise ProcessLookupError(str(error)) from error

    def rss(self) -> int:
        if self._file < 0:
            return self.read().rss
        pages = int(os.pread(self._file, 128, 0).split()[1])
        if not pages:  # it has ended, but its parent has not collected it
            raise ProcessLookupError(self.pid)
        return pages * _PAGE

    def read(self) -> Usage:
        if self._file >= 0:
            fields = os.pread(self._file, 128, 0).split()
            return Usage(int(fields[1]) * _PAGE, int(fields[0]) * _PAGE, int(fields[2]) * _PAGE)
        assert self._process is not None
        try:
            info = self._process.memory_info()
        except psutil.Error as error:
            raise ProcessLookupError(str(error)) from error
        return Usage(info.rss, info.vms, getattr(info, 'shared', 0))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def child_pids(pid: int) -> list[int]:
    """The direct children of a process, oldest first.

    Raises:
        OSError: if no file is left to open.
    """
    if _HAS_PROC:
        try:
            pids: set[int] = set()
            for thread in os.listdir(f'/proc/{pid}/task'):
                with open(f'/proc/{pid}/task/{thread}/children', 'rb') as file:
                    pids.update(int(child) for child in file.read().split())
            return sorted(pids, key=_started)
        except OSError:  # a kernel without the file, or a thread that has just ended
            pass
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def _started(pid: int) -> tuple[int, int]:
    """A sort key: the process's start in clock ticks, then its pid."""
    try:
        with open(f'/proc/{pid}/stat', 'rb') as file:
            return int(file.read().rpartition(b')')[2].split()[19]), pid
    except (OSError, IndexError, ValueError):
        return sys.maxsize, pid


def is_dataloader_worker(pid: int) -> bool:
    """True if the process is a worker of a torch DataLoader."""
    return process_name(pid) == _WORKER_NAME


def process_name(pid: int) -> str:
    try:
        if _HAS_PROC:
            return Path(f'/proc/{pid}/comm').read_text().strip()
        return psutil.Process(pid).name()
    except (OSError, psutil.Error):
        return '?'


def private_peak(pid: int) -> Optional[int]:
    """The most memory that a process had for itself, without what it shares with others; None if it has ended.

    The system keeps the peak of all resident memory only. The shared part is taken to have been what it is now.
    """
    try:
        process = psutil.Process(pid)
        most = process.memory_info().rss
        if _HAS_PROC:
            found = re.search(r'VmHWM:\s+(\d+) kB', Path(f'/proc/{pid}/status').read_text())
            most = int(found[1]) * 1024 if found else most
        full: Any = process.memory_full_info()
        return full.uss + max(most - full.rss, 0)
    except (OSError, psutil.Error):
        return None


def resident(pid: int) -> Optional[int]:
    """The resident bytes of a process; None if it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (OSError, psutil.Error):
        return None


def private_and_resident(pid: int) -> Optional[tuple[int, int]]:
    """What a process has for itself alone, and all that is resident; None if it has ended. It takes some 25 ms for each GiB."""
    try:
        full: Any = psutil.Process(pid).memory_full_info()
        return full.uss, full.rss
    except (OSError, psutil.Error):
        return None


def machine_memory() -> dict[str, int]:
    """Of the machine: memory available without swapping, swap in use, and size of the files in /dev/shm."""
    readings = {'available': psutil.virtual_memory().available}
    try:
        readings['swap_used'] = psutil.swap_memory().used
        shm = os.statvfs('/dev/shm')  # noqa: S108
        readings['dev_shm_used'] = (shm.f_blocks - shm.f_bfree) * shm.f_frsize
    except (OSError, RuntimeError):
        pass
    return readings


def process_details() -> dict[str, int]:
    """Costly readings of this process (milliseconds): unique and proportional memory, faults, threads, open files."""
    readings: dict[str, int] = {}
    process = psutil.Process()
    try:
        full: Any = process.memory_full_info()
        readings['uss'] = full.uss
        if hasattr(full, 'pss'):
            readings['pss'] = full.pss
        readings['threads'] = process.num_threads()
        readings['open_files'] = process.num_fds() if hasattr(process, 'num_fds') else len(process.open_files())
    except psutil.Error:
        pass
    if resource is not None:
        faults = resource.getrusage(resource.RUSAGE_SELF)
        readings['minor_faults'], readings['major_faults'] = faults.ru_minflt, faults.ru_majflt
    pinned = _pinned_bytes()
    if pinned is not None:
        readings['pinned'] = pinned
    return readings


def _pinned_bytes() -> Optional[int]:
    """Host memory that torch has pinned for copies to a GPU; None before torch 2.7 and without CUDA."""
    if not hasattr(torch.cuda, 'host_memory_stats') or not torch.cuda.is_initialized():
        return None
    return torch.cuda.host_memory_stats().get('allocated_bytes.current')
