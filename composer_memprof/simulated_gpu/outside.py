"""What a training takes of a device beside torch's allocator: allowances, since nothing of it is simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from composer_memprof.messages import human_bytes
from composer_memprof.simulated_gpu.devices import Device

_MIB = 1 << 20
#: What each allowance is for, in words.
_NAMES = {'cuda_context': 'the CUDA context', 'cublas': 'cuBLAS', 'nccl': 'NCCL'}


@dataclasses.dataclass(frozen=True)
class Outside:
    """Allowances in bytes.

    Attributes:
        cuda_context: of one process, with the kernels that it has loaded.
        cublas: its first handle. The workspaces are in torch's allocator. Posted: 12 MiB, of a card that is not named.
        nccl: buffers of its communicators. Posted for NVLink: 544 MB with 2 ranks, 688 MB with 3 and 4, 1.06 GB with 8.
    """

    cuda_context: int
    cublas: int
    nccl: int

    @property
    def bytes(self) -> int:
        return self.cuda_context + self.cublas + self.nccl


def outside_of(device: Device, ranks: int) -> Outside:
    """The allowances for one process among ``ranks``.

    >>> from composer_memprof.simulated_gpu.devices import find_device
    >>> outside_of(find_device('h100-80gb'), 1).nccl
    0
    """
    nccl = 0 if ranks == 1 else 544 if ranks == 2 else 688 if ranks <= 4 else 1011
    return Outside(cuda_context=device.context, cublas=12 * _MIB, nccl=nccl * _MIB)


def in_words(allowances: Mapping[str, int]) -> str:
    """The allowances of an :class:`Outside`, by its attributes.

    >>> in_words({'cuda_context': 1 << 30, 'nccl': 0})
    '1.0 GiB for the CUDA context'
    """
    return ', '.join(f'{human_bytes(size)} for {_NAMES[name]}' for name, size in allowances.items() if size)
