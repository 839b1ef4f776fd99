"""The peak of configurations as torch's ``MemTracker`` counts it on tensors without data: ``python -m tests.breadth.counting NAME…``.

No allocator takes part: sizes of tensors are added up, each rounded up to 512 B. What an operator allocates within itself it
does not see. Where sizes follow from values, which those tensors do not have, the host trains for real, and the storages that
its operators return are added up in the same way, and dropout keeps the small masks that it keeps on a GPU. A simulated GPU
must be there, since torch asks even for tensors without data whether there is one.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tests.breadth.row import train
from tests.breadth.rows import ROWS

_STEPS = 3


def main(names: list[str]) -> None:
    """Print for each name its peak in bytes, or why it could not be counted."""
    for name in names:
        try:
            found = {'name': name, 'bytes': _either(name)}
        except Exception as error:
            traceback.print_exc()
            said = ' '.join(f'{type(error).__name__}: {error}'.split())
            found = {'name': name, 'error': said[:200]}
        print(json.dumps(found), flush=True)


def _either(name: str) -> int:
    try:
        return counted(name)
    except Exception:  # most of them need values
        traceback.print_exc()
        return counted_on_host(name)


class _Storages(TorchDispatchMode):
    """Adds up what is alive.

    Attributes:
        peak: the most so far, in bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._alive = 0
        self._known: set[int] = set()

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._known:
            return
        size = -(-storage.nbytes() // 512) * 512
        self._known.add(address)
        self._alive += size
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._gone, address, size)

    def _gone(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._alive -= size

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        for each in tree_iter(result):
            if isinstance(each, torch.Tensor) and each.numel():
                self.see(each)
        return result


@contextlib.contextmanager
def _dropout_as_on_a_gpu() -> Iterator[None]:
    """Within the block dropout keeps a byte for each element; the host's own keeps a number."""
    before = functional.dropout

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or not p or inplace:
            return before(input, p, training, inplace)
        return torch.native_dropout(input, p, training)[0]

    functional.dropout = dropout
    try:
        yield
    finally:
        functional.dropout = before


def counted_on_host(name: str) -> int:
    """With real values, on the CPU."""
    training = ROWS[name].make()
    storages = _Storages()
    for each in (*training.model.parameters(), *training.model.buffers(), *tree_iter(training.batch)):
        storages.see(each)
    with storages, _dropout_as_on_a_gpu():
        train(training, _STEPS)
    return storages.peak


def counted(name: str) -> int:
    tracker = MemTracker()
    with FakeTensorMode(), tracker:
        with torch.device('cuda'):
            training = ROWS[name].make()
        tracker.track_external(training.model, *tree_iter(training.batch))
        train(training, _STEPS, tracker.reset_mod_stats)
    (device,) = [device for device in tracker.get_tracker_snapshot('peak') if device.type == 'cuda']
    return tracker.get_tracker_snapshot('peak')[device]['Total']


if __name__ == '__main__':
    main(sys.argv[1:])
