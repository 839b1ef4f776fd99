"""The peak of configurations as torch's ``MemTracker`` counts it on tensors without data: ``python -m tests.breadth.counting NAME…``.

No allocator takes part: sizes of tensors are added up, each rounded up to 512 B. What an operator allocates within itself it
does not see; two that change a peak are added (:class:`_AsOnAGpu`, :func:`_recurrent_as_cudnn`). Where sizes follow from values, which those tensors do not have, the host trains for real, and the storages that
its operators return are added up in the same way, and dropout keeps the small masks that it keeps on a GPU. A simulated GPU
must be there, since torch asks even for tensors without data whether there is one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._prims_common import is_non_overlapping_and_dense
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tests.breadth.forked import import_all, in_a_fork
from tests.breadth.row import train
from tests.breadth.rows import ROWS

_STEPS = 3


def main(names: list[str]) -> None:
    """Print for each name its peak in bytes, if it can be counted."""
    import_all()
    for name in names:  # what fails on tensors without data may leave torch so that the process crashes later
        if not in_a_fork(functools.partial(_print, name, counted)):  # most of these need values
            in_a_fork(functools.partial(_print, name, counted_on_host))


def _print(name: str, count: Callable[[str], int]) -> None:
    print(json.dumps({'name': name, 'bytes': count(name)}), flush=True)


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


class _AsOnAGpu(TorchDispatchMode):
    """Does what torch does on a GPU, where no mode is on.

    - Gradients that come together are added in place: ``InputBuffer::accumulate`` does so if nobody else holds the first one,
      but not while a mode is on. A plain run on the host, without a mode, shows it too.
    - What backward sums by indices, in zeros that it has just made, is summed in place there: ``index_select_backward``,
      ``gather_backward`` and ``index_backward`` in ``FunctionsManual.cpp`` and ``Indexing`` do so unless a mode is on.
    - A sum over rows takes a buffer: ``setReduceConfig`` and ``global_memory_size`` in ``ATen/native/cuda/Reduce.cuh``.
    - Softmax multiplies gradients and outputs first, in backward: ``softmax_backward_cuda_out`` in ``SoftMax.cu``.
    """

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function is torch.ops.aten.add.Tensor and not keywords and _comes_together(*arguments[:2]):
            return arguments[0].add_(arguments[1])
        if function in _SUMS_BY_INDICES and _is_alone_in_backward(arguments[0]):
            return _SUMS_BY_INDICES[function](*arguments, **(keywords or {}))
        if function is torch.ops.aten._softmax_backward_data.default:
            products = torch.empty_like(arguments[0])
            result = function(*arguments, **(keywords or {}))
            del products
            return result
        if function is torch.ops.aten.sum.dim_IntList and _is_over_rows(*arguments[:2]):
            rows, columns = arguments[0].shape
            buffer = arguments[0].new_empty(_buffer_of_sum(rows, columns), dtype=torch.uint8)
            result = function(*arguments, **(keywords or {}))
            del buffer
            return result
        return function(*arguments, **(keywords or {}))


def _comes_together(one: Any, other: Any) -> bool:
    if not isinstance(other, Tensor) or not _is_alone_in_backward(one):
        return False
    return one.shape == other.shape and one.dtype == other.dtype and is_non_overlapping_and_dense(one)


def _is_alone_in_backward(one: Tensor) -> bool:
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return False
    return torch._C._storage_Use_Count(one.untyped_storage()._cdata) == 1 and sys.getrefcount(one) <= _HELD_BY_CALLS


#: References of a tensor that only the engine holds, within :func:`_is_alone_in_backward`.
_HELD_BY_CALLS = 5
_SUMS_BY_INDICES = {
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
}


def _is_over_rows(tensor: Tensor, dimensions: Any) -> bool:
    return tensor.dim() == 2 and list(dimensions) == [0] and tensor.is_contiguous() and tensor.dtype == torch.float32


def _buffer_of_sum(rows: int, columns: int) -> int:
    """Bytes by which the blocks of a sum of so many rows of float32 exchange their parts, on an A100; 0 if each has a column."""
    vector = 4 if columns % 4 == 0 and columns >= 128 else 1
    width, height = 32, 512 // vector // 32
    values = -(-rows // height)  # of each thread
    if columns // vector < width or values < 256:
        return 0
    at_once = 108 * 2048 // (width * height)
    blocks = -(-at_once // -(-columns // vector // width))
    blocks = max(min(blocks, -(-values // 16)), -(-values // 256))
    return 4 * columns * blocks * width * vector if blocks > 1 else 0


class _Recurrent(torch.autograd.Function):
    """A recurrent network that keeps so much for backward."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, width: int, kept: int, *weights: Tensor) -> Tensor:
        output = input.new_empty(*input.shape[:2], width)
        ctx.save_for_backward(input, output, input.new_empty(kept * output.numel()), *weights)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        input, _, _, *weights = ctx.saved_tensors
        return torch.empty_like(input), None, None, *map(torch.empty_like, weights)


@contextlib.contextmanager
def _recurrent_as_cudnn() -> Iterator[None]:
    """Within the block recurrent networks keep what cuDNN keeps; the host's run cell by cell, and keep three times as much.

    cuDNN gave a size of 736,000,000 B for an LSTM and of 864,000,000 B for a GRU, of 4 layers of 320 units each, in
    https://github.com/pytorch/pytorch/issues/2895. These are 23 and 27 float32 of each unit at 25,000 places of a batch: 6
    and 7 of each layer, without the outputs of the last one, which are no part of it.
    """
    before = nn.LSTM.forward, nn.GRU.forward

    def forward(network: Any, input: Tensor, state: Any = None) -> tuple[Tensor, None]:
        del state  # unused
        kept = (6 if isinstance(network, nn.LSTM) else 7) * network.num_layers - 1
        return _Recurrent.apply(input, network.hidden_size, kept, *network._flat_weights), None

    nn.LSTM.forward = nn.GRU.forward = forward  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.LSTM.forward, nn.GRU.forward = before  # type: ignore[method-assign]


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
    with storages, _AsOnAGpu(), _recurrent_as_cudnn(), _dropout_as_on_a_gpu():
        train(training, _STEPS)
    return storages.peak


def counted(name: str) -> int:
    tracker = MemTracker()
    with FakeTensorMode(), tracker, _AsOnAGpu(), _recurrent_as_cudnn():
        with torch.device('cuda'):
            training = ROWS[name].make()
        tracker.track_external(training.model, *tree_iter(training.batch))
        train(training, _STEPS, tracker.reset_mod_stats)
    (device,) = [device for device in tracker.get_tracker_snapshot('peak') if device.type == 'cuda']
    return tracker.get_tracker_snapshot('peak')[device]['Total']


if __name__ == '__main__':
    main(sys.argv[1:])
