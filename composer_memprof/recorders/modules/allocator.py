"""What CUDA's allocator has handed out beyond the tensors that a recording sees.

Workspaces of cuBLAS and cuDNN, and tensors that only C++ holds. The bytes are those asked for, not rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

import torch

_CURRENT, _PEAK = 'requested_bytes.all.current', 'requested_bytes.all.peak'


@dataclass(frozen=True)
class NotSeen:
    """Bytes that a device's allocator had handed out beyond the tensors that were seen.

    Args:
        start (int): when the recording began.
        peak (int): after the operation at which the tensors that were seen took the most memory.
        inside (int, optional): by how much the allocator's peak, which may lie inside of an operation, is above
            what it had handed out then. None: the process's peak is older than the recording.
    """

    start: int
    peak: int
    inside: Optional[int]


class AllocatorReadings:
    """Reads the allocators of CUDA devices. There is none to read for a CPU, where a recording has no readings."""

    def __init__(self) -> None:
        self._start: dict[torch.device, int] = {}
        self._peak_before: dict[torch.device, int] = {}
        self._seen: dict[torch.device, int] = {}
        self._peak: dict[torch.device, tuple[int, int]] = {}

    @property
    def devices(self) -> Mapping[torch.device, int]:
        """The devices that are read, with the most bytes that were seen on each so far."""
        return self._seen

    def begin(self, seen: Mapping[torch.device, int]) -> None:
        """Read each device in ``seen``; its values are the bytes of the tensors that are seen there."""
        for device, size in seen.items():
            if device.type == 'cuda' and torch.cuda.is_initialized():
                statistics = torch.cuda.memory_stats(device)
                if _CURRENT in statistics:
                    self._start[device] = statistics[_CURRENT] - size
                    self._peak_before[device] = statistics[_PEAK]
                    self._seen[device] = size
                    self._peak[device] = (statistics[_CURRENT] - size, statistics[_CURRENT])

    def higher(self, device: torch.device, seen: int) -> None:
        """The tensors on ``device`` take ``seen`` bytes now, more than before."""
        now = torch.cuda.memory_stats(device)[_CURRENT]
        self._seen[device] = seen
        self._peak[device] = (now - seen, now)

    def read(self) -> dict[str, NotSeen]:
        """By device, as torch prints it."""
        found = {}
        for device, start in self._start.items():
            highest = torch.cuda.memory_stats(device)[_PEAK]
            not_seen, then = self._peak[device]
            inside = highest - then if highest > self._peak_before[device] else None
            found[str(device)] = NotSeen(start, not_seen, inside)
        return found
