"""Follow the storages of tensors from the first operation that sees them until they are freed."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch

from composer_memprof.recorders.modules.categories import OTHER
from composer_memprof.recorders.modules.memory_log import MemoryLog
from composer_memprof.recorders.tensors import parts_of, tensors_in
from composer_memprof.recorders.torch_private.tensors import cdata_of


class _FollowedStorage:
    """A storage while it lives. ``block`` is the log's number for it at its present size."""

    __slots__ = ('block', 'bytes', 'device', 'number', 'ref')

    def __init__(self, number: int, device: int) -> None:
        self.number = number
        self.device = device
        self.bytes = 0
        self.block = -1
        self.ref: Optional[_StorageReference] = None


class _StorageReference(weakref.ref):
    __slots__ = ('key', 'storage')
    key: int
    storage: _FollowedStorage


class StorageFollower:
    """Writes into the log when storages are first seen, resized and freed, and what category they are.

    Args:
        log (MemoryLog): to write to.
        codes (Mapping[str, int]): of the log's categories.
    """

    def __init__(self, log: MemoryLog, codes: Mapping[str, int]) -> None:
        self._log = log
        self._codes = codes
        self._followed: dict[int, _FollowedStorage] = {}
        #: Numbers of the devices that storages were seen on.
        self.devices: dict[torch.device, int] = {}
        #: Bytes of the storages that live now, by the device's number.
        self.live: list[int] = []

    def close(self) -> None:
        """Follow no storage any longer; what is freed from now on is not written."""
        self._followed = {}

    def see(self, value: Any, category: str) -> None:
        """Follow the storages of a tensor, or of the tensors in a list, tuple or dict; ``category`` is for new ones."""
        if isinstance(value, torch.Tensor):
            if not self._is_followed(value):
                for part in parts_of(value):
                    self._see_part(part, category)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.see(item, category)
        elif isinstance(value, dict):
            for item in value.values():
                self.see(item, category)

    def tag(self, tensor: torch.Tensor, category: str, over: Sequence[str] = ()) -> None:
        """Set the category of the tensor's storages, from when they were made on.

        Args:
            tensor (Tensor): seen or not.
            category (str): the new one.
            over (Sequence[str]): keep any other category than these. Empty: replace every category.
        """
        log = self._log
        for part in parts_of(tensor):
            storage = self._see_part(part, category)
            if storage is not None and (not over or log.names[log.categories[storage.number]] in over):
                log.categories[storage.number] = self._codes[category]

    def tag_all(self, values: Any, category: str, over: Sequence[str] = ()) -> None:
        """:meth:`tag` for the tensors in ``values``, in any nesting."""
        for tensor in tensors_in(values):
            self.tag(tensor, category, over)

    def see_older(self, tensor: torch.Tensor, holder: str) -> list[int]:
        """Follow the tensor's storages, which were there before the recording and which ``holder`` holds.

        Returns:
            list: the numbers of all of its storages, of those too that were seen before.
        """
        numbers = []
        for part in parts_of(tensor):
            first = len(self._log.categories)
            followed = self._see_part(part, OTHER)
            if followed is not None:
                numbers.append(followed.number)
                if followed.number == first:
                    self._log.before[first] = holder
        return numbers

    def see_buckets(self, value: Any, category: str, holder: str, left: dict[torch.device, int]) -> None:
        """As :meth:`see`; but a new storage that fits into what is ``left`` on its device is older, and is taken off."""
        first = len(self._log.categories)
        self.see(value, category)
        if len(self._log.categories) == first:
            return
        for tensor in tensors_in(value):
            for part in parts_of(tensor):
                followed = self._see_part(part, category)
                if followed is None or followed.number < first or followed.number in self._log.before:
                    continue
                if followed.bytes <= left.get(part.device, 0):
                    self._log.before[followed.number] = holder
                    left[part.device] -= followed.bytes

    def add_unseen(self, device: torch.device, size: int, holder: str) -> None:
        """``size`` bytes were there during all of the recording, in storages that no operation used."""
        log = self._log
        log.categories.append(self._codes[OTHER])
        log.before[len(log.categories) - 1] = holder
        log.open_block(len(log.categories) - 1, self._number_of(device), size, 0)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """The storage has a new size."""
        followed = self._followed.get(cdata_of(storage))
        if followed is None:
            followed = self._follow(storage, storage.device, OTHER)
        if followed is not None:
            self._set_size(followed, storage.nbytes(), self._log.tick + 1)

    def _is_followed(self, tensor: torch.Tensor) -> bool:
        try:
            storage = tensor.untyped_storage()
            followed = self._followed.get(cdata_of(storage))
            return followed is not None and followed.bytes == storage.nbytes()
        except (NotImplementedError, RuntimeError):  # a tensor without a storage of its own
            return False

    def _see_part(self, tensor: torch.Tensor, category: str) -> Optional[_FollowedStorage]:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        followed = self._followed.get(cdata_of(storage))
        if followed is None:
            return self._follow(storage, tensor.device, category)
        if followed.bytes != storage.nbytes():
            self._set_size(followed, storage.nbytes(), self._log.tick)
        return followed

    def _follow(self, storage: torch.UntypedStorage, device: torch.device, category: str) -> Optional[_FollowedStorage]:
        log = self._log
        if device.type == 'meta':
            return None
        log.categories.append(self._codes[category])
        followed = _FollowedStorage(len(log.categories) - 1, self._number_of(device))
        reference = _StorageReference(storage, self._freed)
        reference.key, reference.storage = cdata_of(storage), followed
        followed.ref = reference
        self._followed[reference.key] = followed
        self._set_size(followed, storage.nbytes(), log.tick)
        return followed

    def _number_of(self, device: torch.device) -> int:
        if device not in self.devices:
            self.devices[device] = len(self.devices)
            self.live.append(0)
        return self.devices[device]

    def _freed(self, reference: weakref.ref) -> None:
        assert isinstance(reference, _StorageReference)
        if self._followed.get(reference.key) is not reference.storage:
            return
        del self._followed[reference.key]
        self._set_size(reference.storage, 0, self._log.tick + 1)

    def _set_size(self, storage: _FollowedStorage, size: int, tick: int) -> None:
        if storage.bytes:
            self._log.close_block(storage.block, tick)
        self.live[storage.device] += size - storage.bytes
        storage.bytes = size
        if size:
            storage.block = self._log.open_block(storage.number, storage.device, size, tick)
