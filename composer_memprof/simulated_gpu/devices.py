"""The GPUs that can be simulated: what a driver reports of each, as far as it decides what torch allocates."""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Optional

#: Drivers report a device's memory differently, by up to this share.
_SAME = 0.005
_KIB = 1 << 10
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Device:
    """One kind of GPU. Sizes are in bytes.

    Attributes:
        key: what users call it, such as ``h100-80gb``.
        name: what the driver calls it.
        total_memory: what the driver reports, which is less than the name says.
        compute_capability: (major, minor).
        measured_context: what a process's CUDA context takes beside torch's allocator, where somebody measured it.
    """

    key: str
    name: str
    total_memory: int
    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_cache: int
    memory_bus_width: int
    measured_context: Optional[int] = None

    @property
    def context(self) -> int:
        """An allowance for the CUDA context: as measured, else 2 KiB for each thread that the device can hold.

        The latter is what the measured ones have in common, all but the T4's, which has 2.6.
        """
        return self.measured_context or 2 * _KIB * self.multiprocessors * _LIMITS[self.compute_capability].threads

    def figures(self) -> dict[str, int | str]:
        """What the simulated runtime reads: the device's own figures and those of its compute capability."""
        major, minor = self.compute_capability
        limits = _LIMITS[self.compute_capability]
        return {
            'name': self.name,
            'total_memory': self.total_memory,
            'major': major,
            'minor': minor,
            'multiprocessors': self.multiprocessors,
            'l2_cache': self.l2_cache,
            'memory_bus_width': self.memory_bus_width,
            'shared_memory_per_block': 48 * _KIB,
            'shared_memory_per_block_optin': limits.shared_memory - (_KIB if major >= 8 else 0),
            'shared_memory_per_multiprocessor': limits.shared_memory,
            'threads_per_multiprocessor': limits.threads,
            'blocks_per_multiprocessor': limits.blocks,
        }


@dataclasses.dataclass(frozen=True)
class _Limits:
    """What each multiprocessor of a compute capability can hold.

    Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
    """

    threads: int
    blocks: int
    shared_memory: int


_LIMITS = {
    (7, 0): _Limits(2048, 32, 96 * _KIB),
    (7, 5): _Limits(1024, 16, 64 * _KIB),
    (8, 0): _Limits(2048, 32, 164 * _KIB),
    (8, 6): _Limits(1536, 16, 100 * _KIB),
    (8, 9): _Limits(1536, 24, 100 * _KIB),
    (9, 0): _Limits(2048, 32, 228 * _KIB),
    (10, 0): _Limits(2048, 32, 228 * _KIB),
}
# Each with the source of its figures. Drivers differ in the total memory by up to some tenths of a per cent.
_DEVICES = {
    device.key: device
    for device in (
        # posted with CUDA 12.4; other drivers report 15,835,660,288 and 15,843,721,216; context from a llama.cpp log
        Device('t4', 'Tesla T4', 15828320256, (7, 5), 40, 4 * _MIB, 256, 105 * _MIB),
        # openxla/xla, xla/backends/gpu/target_config/specs/v100.txtpb
        Device('v100-16gb', 'Tesla V100-SXM2-16GB', 16935682048, (7, 0), 80, 6 * _MIB, 4096),
        # posted deviceQuery, CUDA 12.9
        Device('v100-32gb', 'Tesla V100-SXM2-32GB', 34072559616, (7, 0), 80, 6 * _MIB, 4096),
        # torch prints 22,587 MB, and so it does for an A10 of 23,684,841,472 B; the bus is the A10's
        Device('a10g', 'NVIDIA A10G', 23684841472, (8, 6), 80, 6 * _MIB, 384),
        # deviceQuery in thamada/nvidia-smi; context from a llama.cpp log
        Device('l4', 'NVIDIA L4', 23570219008, (8, 9), 58, 48 * _MIB, 192, 194 * _MIB),
        # deviceQuery in thamada/nvidia-smi, CUDA 12.6; with a screen attached there is less
        Device('rtx-3090', 'NVIDIA GeForce RTX 3090', 25327697920, (8, 6), 82, 6 * _MIB, 384, 265 * _MIB),
        # posted deviceQuery, CUDA 13.0; 25,386,352,640 with CUDA 12.4
        Device('rtx-4090', 'NVIDIA GeForce RTX 4090', 25250627584, (8, 9), 128, 72 * _MIB, 384, 400 * _MIB),
        # openxla/xla, specs/a6000.txtpb
        Device('a6000', 'NVIDIA RTX A6000', 51041271808, (8, 6), 84, 6 * _MIB, 384),
        # deviceQuery in thamada/nvidia-smi, CUDA 12.4
        Device('l40s', 'NVIDIA L40S', 47803596800, (8, 9), 142, 96 * _MIB, 384),
        # deviceQuery in bottlerocket-os/bottlerocket, pull request 3873
        Device('a100-40gb', 'NVIDIA A100-SXM4-40GB', 42298834944, (8, 0), 108, 40 * _MIB, 5120, 480 * _MIB),
        # deviceQuery in thamada/nvidia-smi, CUDA 12.5, and openxla/xla; 84,987,740,160 with CUDA 12.2
        Device('a100-80gb', 'NVIDIA A100-SXM4-80GB', 85100068864, (8, 0), 108, 40 * _MIB, 5120, 480 * _MIB),
        # posted deviceQuery, CUDA 12.8; between 84,942,979,072 and 85,045,477,376 with others
        Device('h100-80gb', 'NVIDIA H100 80GB HBM3', 85028896768, (9, 0), 132, 50 * _MIB, 5120, 526 * _MIB),
        # posted; L2 and bus are those of the GH200's deviceQuery
        Device('h200-141gb', 'NVIDIA H200', 150110011392, (9, 0), 132, 60 * _MIB, 6144),
        # posted deviceQuery, CUDA 12.2
        Device('gh200', 'NVIDIA GH200 480GB', 102005473280, (9, 0), 132, 60 * _MIB, 6144),
        # openxla/xla, specs/b200.txtpb, and pytorch/ao, pull request 4002
        Device('b200-180gb', 'NVIDIA B200', 191514411008, (10, 0), 148, 132644864, 7680),
    )
}
#: What people call a device, beside its key without the size.
_SHORT_NAMES = {'rtx3090': 'rtx-3090', '3090': 'rtx-3090', 'rtx4090': 'rtx-4090', '4090': 'rtx-4090'}


class UnknownDeviceError(ValueError):
    """No device has this name; the message names the nearest and all of them."""


def device_names() -> list[str]:
    """The keys of all devices.

    >>> 'h100-80gb' in device_names()
    True
    """
    return list(_DEVICES)


def find_device(name: str) -> Device:
    """The device of this name; case, spaces and ``nvidia`` do not matter.

    >>> find_device('NVIDIA H100 80GB').key, find_device('h200').key
    ('h100-80gb', 'h200-141gb')

    Raises:
        UnknownDeviceError: naming the nearest and all of them, or the sizes of a GPU that has several.
    """
    words = re.sub(r'[\s_]+', '-', name.strip().lower()).removeprefix('nvidia-')
    words = _SHORT_NAMES.get(words, words)
    sizes = [key for key in _DEVICES if key.startswith(f'{words}-')]
    if words not in _DEVICES and len(sizes) > 1:
        raise UnknownDeviceError(f'there is more than one GPU named {name!r}. Choose {" or ".join(sizes)}')
    words = words if words in _DEVICES else next(iter(sizes), words)
    if words in _DEVICES:
        return _DEVICES[words]
    longer = [key for key in _DEVICES if key.startswith(words)]
    nearest = longer[:1] or difflib.get_close_matches(words, _DEVICES, n=1, cutoff=0.3)
    hint = f'; the nearest is {nearest[0]}' if nearest else ''
    raise UnknownDeviceError(f'there is no GPU named {name!r}{hint}. Choose one of {", ".join(_DEVICES)}')


def device_asked_for(gpu: Optional[str], memory: Optional[str] = None, compute_capability: str = '9.0') -> Device:
    """The device of the options of ``simulate`` and ``plan``.

    >>> device_asked_for(None).key, device_asked_for('a100-40gb', '24GiB').key, device_asked_for(None, '24GB').key
    ('h100-80gb', 'a100-40gb-24gib', '24gb-sm90')

    Args:
        gpu: its name. Default: ``'h100-80gb'``.
        memory: its memory, such as ``'24GB'``; without ``gpu``, of a device made by hand.
        compute_capability: of one made by hand.

    Raises:
        UnknownDeviceError: in one line.
    """
    if gpu is None and memory is not None:
        return device_by_hand(memory, compute_capability)
    named = find_device(gpu or 'h100-80gb')
    return named if memory is None else with_memory(named, memory)


def device_by_hand(memory: str, compute_capability: str = '9.0') -> Device:
    """A device of another size, with the other figures of a named one of its compute capability.

    >>> device = device_by_hand('24GB', '8.0')
    >>> device.total_memory, device.compute_capability
    (24000000000, (8, 0))

    Raises:
        UnknownDeviceError: if the size or the compute capability can't be read.
    """
    capabilities = {'.'.join(map(str, device.compute_capability)): device for device in _DEVICES.values()}
    like = capabilities.get(compute_capability)
    if like is None:
        known = ', '.join(sorted(capabilities, key=lambda text: tuple(map(int, text.split('.')))))
        raise UnknownDeviceError(f'--compute-capability={compute_capability!r} must be one of {known}')
    found = with_memory(like, memory)
    key = f'{found.key.rpartition("-")[2]}-sm{compute_capability.replace(".", "")}'
    return dataclasses.replace(found, key=key, name=f'simulated GPU of {memory}')


def device_by_key(key: str) -> Device:
    """The device of a key, also of one made by hand or with another size of memory.

    >>> device_by_key('a100-40gb-24gib').total_memory == 24 << 30, device_by_key('24gb-sm80').compute_capability
    (True, (8, 0))

    Raises:
        UnknownDeviceError: if there is none.
    """
    by_hand = re.fullmatch(r'(.+)-sm(\d+)(\d)', key)
    if by_hand is not None:
        return device_by_hand(by_hand[1], f'{by_hand[2]}.{by_hand[3]}')
    name, _, memory = key.rpartition('-')
    if key not in _DEVICES and name in _DEVICES:
        return with_memory(_DEVICES[name], memory)
    return find_device(key)


def device_of_memory(total: int) -> Device:
    """The device that has about this many bytes of memory; of several, the first; if there is none, an H100 with it.

    >>> device_of_memory(42298834944).key, device_of_memory(10**10).key
    ('a100-40gb', 'h100-80gb-10gb')
    """
    nearest = min(_DEVICES.values(), key=lambda device: abs(device.total_memory - total))
    if abs(nearest.total_memory - total) <= _SAME * total:
        return nearest
    return with_memory(_DEVICES['h100-80gb'], f'{total / 10**9:.3f}GB')


def without_limit(device: Device) -> Device:
    """The same device with 64 times the memory, which no training takes.

    >>> without_limit(find_device('t4')).total_memory // find_device('t4').total_memory
    64
    """
    return dataclasses.replace(device, total_memory=64 * device.total_memory)


def with_memory(device: Device, memory: str) -> Device:
    """The same device with another size of memory.

    >>> with_memory(find_device('a100-40gb'), '24GiB').key
    'a100-40gb-24gib'

    Raises:
        UnknownDeviceError: if the size can't be read, or leaves nothing beside what the process itself takes of it.
    """
    size = re.fullmatch(r'(\d{1,6}(?:\.\d{1,6})?)\s*([KMGT])(i?)B?', memory.strip(), re.IGNORECASE)
    if size is None:
        raise UnknownDeviceError(f"--memory={memory!r} must be a size with its unit, such as '24GB' or '24GiB'")
    total = int(float(size[1]) * (1024 if size[3] else 1000) ** ' KMGT'.index(size[2].upper()))
    if total <= device.context + (64 << 20):
        raise UnknownDeviceError(
            f'--memory={memory!r} is too small: the CUDA context alone takes about {device.context >> 20} MiB'
        )
    key = f'{device.key}-{float(size[1]):g}{size[2].lower()}{size[3]}b'
    return dataclasses.replace(device, key=key, total_memory=total)
