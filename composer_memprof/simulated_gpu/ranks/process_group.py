"""A process group that communicates with nobody.

Every collective is done at once, as if all ranks held what this rank holds:

- a gathered tensor is this rank's own in each place;
- a sum is this rank's own times the number of ranks; a mean, a minimum and a maximum are its own;
- a broadcast and a received tensor stay what they are.

Values are computed for tensors on the CPU, and for small ones on a GPU: numbers of samples, flags, sizes. Larger ones
on a GPU keep what they hold, since no kernel runs there.

Each collective's bytes are counted (`traffic`).

NCCL's own use of torch's allocator is repeated: the flat copy of a list of tensors, and the tensor of a barrier.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Optional

import torch
from torch import distributed
from torch.distributed import ReduceOp, Work, distributed_c10d
from torch.futures import Future

from composer_memprof.simulated_gpu.ranks import held, timing, traffic

#: Bytes of a tensor on a GPU up to which its values are computed, on the host.
_SMALL = 4096
_numbers = itertools.count()
#: Before torch 2.7 a collective that C++ asked for, as those of DTensor, keeps the work without its Python object. To wait
#: for it is then to wait for ever.
_WORK_IS_DROPPED = tuple(map(int, torch.__version__.split('.')[:2])) < (2, 7)
#: The most works without an owner in Python that may be waited for.
_MOST_WORKS = 4096
_ownerless: deque[Work] = deque(maxlen=_MOST_WORKS)


class SimulatedProcessGroup(distributed.ProcessGroup):
    """One rank of a group whose other ranks are not there."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._own_rank = rank
        self._ranks = size
        self._spans_nodes: Optional[bool] = None
        self._number = next(_numbers)
        self._end: Optional[float] = None
        self._given: Sequence[torch.Tensor] = ()
        self._held = held.Held()

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        self._count('all_reduce', tensors, 2 * self._others / self._ranks)
        self._reduce(tensors, opts)
        return self._done(tensors, opts=opts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:  # type: ignore[override]
        self._count('reduce', tensors)
        if opts.rootRank == self._own_rank:
            self._reduce(tensors, opts)
        return self._done(tensors, opts=opts)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        self._count('broadcast', tensors)
        return self._done(tensors, opts=opts)

    def allgather(  # type: ignore[override]
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        self._count('all_gather', inputs, self._others)
        self._flat_copy(outputs[0])
        _fill(outputs[0], inputs[0])
        return self._done(outputs[0], opts=opts)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        self._count('all_gather', inputs, self._others)
        for gathered in outputs:
            for output, own in zip(gathered, inputs, strict=True):
                _fill([output], own)
        return self._done([output for gathered in outputs for output in gathered], opts=opts)

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Work:
        self._count('all_gather', [own], self._others)
        _write(output, lambda: _on_host(own).reshape(1, -1).expand(self._ranks, -1).reshape(output.shape))
        return self._done([output], opts=opts)

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, own in zip(outputs, inputs, strict=True):
            self._allgather_base(output, own)
        return self._done(outputs, opts=opts)

    def gather(  # type: ignore[override]
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        self._count('gather', inputs)
        for gathered in outputs:  # none but on the root
            _fill(gathered, inputs[0])
        return self._done([])

    def scatter(  # type: ignore[override]
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        for scattered in inputs:  # none but on the root
            self._count('scatter', scattered, self._others / self._ranks)
            _fill(outputs, scattered[self._own_rank])
        return self._done(outputs, opts=opts)

    def reduce_scatter(  # type: ignore[override]
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        for scattered in inputs:
            self._count('reduce_scatter', scattered, self._others / self._ranks)
        self._flat_copy(inputs[0])
        for output, scattered in zip(outputs, inputs, strict=True):
            _fill([output], scattered[self._own_rank])
        self._reduce(outputs, opts)
        return self._done(outputs, opts=opts)

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> Work:
        self._count('reduce_scatter', [whole], self._others / self._ranks)
        _write(output, lambda: _on_host(whole).reshape(self._ranks, -1)[self._own_rank].reshape(output.shape))
        self._reduce([output], opts)
        return self._done([output], opts=opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, whole in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, whole, opts)
        return self._done(outputs, opts=opts)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        self._count('all_to_all', inputs, self._others / self._ranks)
        for output in outputs:
            if output.shape == inputs[self._own_rank].shape:
                _fill([output], inputs[self._own_rank])
        return self._done(outputs, opts=opts)

    def alltoall_base(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: Optional[Sequence[int]] = None,
        input_sizes: Optional[Sequence[int]] = None,
        opts: Any = None,
    ) -> Work:
        self._count('all_to_all', [whole], self._others / self._ranks)
        _write(output, lambda: self._exchanged(output, _on_host(whole), output_sizes, input_sizes))
        return self._done([output], opts=opts)

    def _exchanged(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: Optional[Sequence[int]],
        input_sizes: Optional[Sequence[int]],
    ) -> torch.Tensor:
        """From each rank the part for this rank; zeros where the sizes say that other ranks hold more.

        A script that sends itself nothing would receive nothing from ranks that hold the same. There each rank is taken
        to send what it is sent.
        """
        each = len(whole) // self._ranks
        parts = whole.split(list(input_sizes or [each] * self._ranks))
        own = parts[self._own_rank]
        received = torch.zeros_like(output, device='cpu')
        for part, sent in zip(received.split(list(output_sizes or [each] * self._ranks)), parts):
            given = own if own.any() else sent
            count = min(len(part), len(given))
            part[:count] = given[:count]
        return received

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> Work:
        self._count('send', tensors)
        return self._done(tensors)

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> Work:
        return self._done(tensors, source=src)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Work:
        return self._done(tensors, source=(self._own_rank - 1) % self._ranks)

    def barrier(self, opts: Any = None) -> Work:
        if self._is_nccl():
            torch.zeros(1, device='cuda')
        return self._done([])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        return None

    def _start_coalescing(self, device: torch.device) -> None:
        return None

    def _end_coalescing(self, device: torch.device) -> Work:
        return self._done([])

    # torch 2.15's names
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    @property
    def _others(self) -> int:
        return self._ranks - 1

    def _count(self, name: str, tensors: Sequence[torch.Tensor], times: float = 1) -> None:
        self._given = tensors
        if self._spans_nodes is None:
            self._spans_nodes = traffic.between_nodes(distributed.get_process_group_ranks(self))
        if self._others:
            traffic.count(name, tensors, times, between_nodes=self._spans_nodes)
            self._end = timing.end_of_collective(name, self._number, self._ranks, tensors, times, self._spans_nodes)

    def _done(self, tensors: Sequence[torch.Tensor], source: int = -1, opts: Any = None) -> Work:
        """The collective that was counted last. Its tensors are there at once; a stream may wait for its time."""
        end, self._end = self._end, None
        given, self._given = self._given, ()
        is_held = getattr(opts, 'asyncOp', False) and self._is_nccl()
        shelf = self._held.hold([*given, *tensors]) if is_held else []
        return (_DoneBeforeTorch27 if _WORK_IS_DROPPED else _Done)(tensors, source, end, shelf)

    def _reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> None:
        operation = ReduceOp.SUM if opts is None else opts.reduceOp
        for tensor in tensors:
            reduced = _reduction(operation, self._ranks)
            if reduced is not None:
                _write(tensor, lambda own=tensor, reduced=reduced: reduced(_on_host(own)))  # type: ignore[misc]

    def _flat_copy(self, tensors: Sequence[torch.Tensor]) -> None:
        """NCCL gathers into one tensor and copies from there; it does so only if all are of one size."""
        if self._is_nccl() and tensors[0].is_cuda and len({tensor.shape for tensor in tensors}) == 1:
            tensors[0].new_empty((len(tensors), *tensors[0].shape))

    def _is_nccl(self) -> bool:
        return 'cuda:nccl' in distributed_c10d._world.pg_backend_config.get(self, '')


class _Done(Work):
    """A collective that is finished. Its future holds the tensors, as DDP's reducer expects."""

    def __init__(self, tensors: Sequence[torch.Tensor], source: int, end: Optional[float], shelf: held.Shelf) -> None:
        super().__init__()
        self._end = end
        self._shelf = shelf
        self._tensors = list(tensors)
        self._source = source

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        self.synchronize()
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        timing.wait(self._end)
        self._shelf.clear()

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        devices = list({tensor.device for tensor in self._tensors if tensor.is_cuda})
        future: Future[Any] = Future(devices=devices)  # type: ignore[arg-type]
        with timing.waited_for(self._end):  # whoever waits for the future waits for what its stream has done now
            future.set_result(self._tensors)
        return future


class _DoneBeforeTorch27(_Done):
    """Lives on, without its tensors, when its last owner in Python is gone: one in C++ may still wait for it."""

    def __del__(self) -> None:
        self._tensors = []
        _ownerless.append(self)


def _reduction(operation: Any, ranks: int) -> Optional[Callable[[torch.Tensor], torch.Tensor]]:
    """What becomes of a tensor that all ranks hold; None if it stays the same."""
    if operation == ReduceOp.SUM:
        return lambda own: own * ranks
    if operation == ReduceOp.PRODUCT:
        return lambda own: own**ranks
    if operation == ReduceOp.BXOR and ranks % 2 == 0:
        return torch.zeros_like
    return None


def _fill(outputs: Sequence[torch.Tensor], own: torch.Tensor) -> None:
    for output in outputs:
        if output.shape == own.shape:
            _write(output, lambda: _on_host(own))


def _write(output: torch.Tensor, values: Callable[[], torch.Tensor]) -> None:
    """Write the values into the output, if anybody can read them there."""
    if output.device.type == 'cuda' and (output.nbytes > _SMALL or torch.cuda.is_current_stream_capturing()):
        return
    # The real ones write below autograd, which sees neither the copy nor a new version of the tensor.
    with torch.inference_mode(output.is_inference()), torch.no_grad():
        output.data.copy_(values())


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values without a kernel, after which nothing could be read back from the device."""
    return tensor.cpu() if tensor.device.type == 'cuda' else tensor
