"""What is known of the values in the device's memory: kept for each storage, beside the simulation, in host memory.

A storage's entry has its bytes, so that views, aliases and operators in place need no rule of their own. It is dropped
with the storage. What torch counts as a tensor's version shows whether something wrote to it unseen.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import torch

from composer_memprof.simulated_gpu.values import keys

#: Bytes of a storage up to which its values are followed: of numbers, and of integers, which lengths and masks are.
_LARGEST, _LARGEST_INTEGERS = 65536, 1 << 20
#: How sure a value is: computed from what the script put in; given because it is so in a training that works; a guess.
REAL, EXPECTED, GUESSED = range(3)
#: Uses together with values that are not known, after which a tensor is no longer followed by operators.
_MOST_MIXED = 3
#: Tensors that torch computes itself.
PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclasses.dataclass(frozen=True)
class Rule:
    """What is known of values too many to compute.

    Attributes:
        share: of the elements is ``value``; all others are 0.
        below: integers that are spread evenly from 0 to below this number; 0 if they are none.
    """

    share: float = 1.0
    value: float = 1
    below: int = 0


@dataclasses.dataclass
class Entry:
    """What is known of one storage: its bytes, or a rule.

    Attributes:
        below: its whole numbers are choices among so many; 0 if they are none.
        mixed: how often it was used together with what is not known.
    """

    bytes: int
    sure: int
    version: int
    values: Optional[torch.UntypedStorage] = None
    rule: Optional[Rule] = None
    mixed: int = 0
    below: int = 0


_entries: dict[int, Entry] = {}  # by the storage's address, which is not used again while there is a weak reference
_since_swept = 0


def is_plain(tensor: Any) -> bool:
    """Whether this is a tensor on the device that torch computes itself: no fake one, no subclass, no wrapper of functorch."""
    if type(tensor) not in PLAIN or not tensor.is_cuda or tensor.layout is not torch.strided:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def is_small(storage_bytes: int, dtype: torch.dtype) -> bool:
    """Whether values in a storage of this size are followed."""
    is_number = dtype.is_floating_point or dtype.is_complex
    return storage_bytes <= (_LARGEST if is_number else _LARGEST_INTEGERS)


def fills_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor has as many bytes as its storage."""
    return tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()


def version_of(tensor: torch.Tensor) -> int:
    """torch's count of writes; inference has none."""
    return 0 if tensor.is_inference() else tensor._version


def entry_of(tensor: torch.Tensor) -> Optional[Entry]:
    """What is known of the tensor's storage, None if nothing is."""
    if not is_plain(tensor):
        return None
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a wrapper of functorch
        return None
    entry = _entries.get(storage._cdata)
    if entry is None:
        return None
    if entry.bytes != storage.nbytes() or version_of(tensor) > entry.version:
        forget(tensor)
        return None
    return entry


def values_of(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """The tensor's values, on the host: a view of what is kept, None if they are not known."""
    entry = entry_of(tensor)
    return None if entry is None or entry.values is None else view_of(entry, tensor)


def view_of(entry: Entry, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the host in the entry's bytes, as ``tensor`` lies in its storage."""
    return torch.empty(0, dtype=tensor.dtype, device='cpu').set_(
        entry.values,  # type: ignore[arg-type]
        tensor.storage_offset(),
        tensor.size(),
        tensor.stride(),
    )


def entry_before_write(tensor: torch.Tensor) -> Optional[Entry]:
    """The entry of a tensor that was just written to, once: its bytes are those before."""
    entry = _entries.get(tensor.untyped_storage()._cdata) if is_plain(tensor) else None
    if entry is None or entry.values is None or entry.bytes != tensor.untyped_storage().nbytes():
        return None
    return entry if version_of(tensor) <= entry.version + 1 else None


def know(tensor: torch.Tensor, values: torch.Tensor, sure: int, *, is_new: bool = False, below: int = 0) -> None:
    """Keep the values of a tensor that was just written, if they are few and fill its storage.

    Args:
        is_new: the tensor was just made: more of its storage may be there, but means nothing.
        below: the values are choices among so many.
    """
    if not is_plain(tensor) or type(tensor) is torch.nn.Parameter:
        return
    storage = tensor.untyped_storage()
    if not storage.nbytes() or not is_small(storage.nbytes(), tensor.dtype) or not (is_new or fills_storage(tensor)):
        return
    kept = torch.UntypedStorage(storage.nbytes())
    entry = Entry(storage.nbytes(), sure, version_of(tensor), kept, below=below)
    view_of(entry, tensor).copy_(values)
    _add(storage, entry)
    keys.mark(tensor)


def know_rule(tensor: torch.Tensor, rule: Rule, sure: int) -> None:
    """Keep a rule for a tensor of any size; a small one gets values by it."""
    if not is_plain(tensor):
        return
    if is_small(tensor.untyped_storage().nbytes(), tensor.dtype):
        know(tensor, _by_rule(rule, tensor), sure, below=rule.below)
        return
    storage = tensor.untyped_storage()
    _add(storage, Entry(storage.nbytes(), sure, version_of(tensor), rule=rule))
    keys.mark(tensor)


def _by_rule(rule: Rule, tensor: torch.Tensor) -> torch.Tensor:
    number = torch.arange(tensor.numel()).reshape(tensor.shape)
    if rule.below:
        return (number + rule.below // 2) % rule.below
    if rule.share >= 1:
        return torch.full(tensor.shape, rule.value)
    return (((number + 1) * rule.share).floor() > (number * rule.share).floor()) * rule.value


def wrote(tensor: torch.Tensor, sure: int) -> None:
    """The entry's bytes have become what the tensor's storage would hold now."""
    storage = tensor.untyped_storage()
    entry = _entries.get(storage._cdata)
    if entry is not None:
        # a mode's handler runs before torch counts the write
        entry.version = max(entry.version, version_of(tensor) + keys.is_in_handler())
        entry.sure = max(entry.sure, sure)


def forget(tensor: torch.Tensor) -> None:
    """Something was written that is not known."""
    if is_plain(tensor):
        storage = tensor.untyped_storage()
        if _entries.pop(storage._cdata, None) is not None:
            _release(storage._cdata)
        keys.unmark(tensor)


def used_with_unknown(tensor: torch.Tensor, entry: Entry) -> None:
    """After some of these uses, as a weight's or a bias's, following it costs more than it tells."""
    entry.mixed += 1
    if entry.mixed > _MOST_MIXED and (tensor.is_floating_point() or entry.mixed > 100 * _MOST_MIXED):
        keys.unmark(tensor)


def _add(storage: torch.UntypedStorage, entry: Entry) -> None:
    global _since_swept
    address = storage._cdata
    if address not in _entries:
        storage._weak_ref()
        _since_swept += 1
    _entries[address] = entry
    if _since_swept > max(256, len(_entries) // 2):
        _since_swept = 0
        for each in [each for each in _entries if torch.UntypedStorage._expired(each)]:
            del _entries[each]
            _release(each)


def _release(address: int) -> None:
    torch.UntypedStorage._free_weak_ref(address)
