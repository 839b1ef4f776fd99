"""A process group that communicates with nobody, behind every backend's name.

Every collective is done at once, as if all ranks held what this rank holds:

- a gathered tensor is this rank's own in each place;
- a sum is this rank's own times the number of ranks; a mean, a minimum and a maximum are its own;
- a broadcast and a received tensor stay what they are.

Values are computed for tensors on the CPU, and for small ones on a GPU: numbers of samples, flags, sizes. Larger ones
on a GPU keep what they hold, since no kernel runs there.

NCCL's own use of torch's allocator is repeated: the flat copy of a list of tensors, and the tensor of a barrier.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Optional

import torch
from torch import distributed
from torch._C._distributed_c10d import FakeProcessGroup, HashStore, ReduceOp, Work
from torch.distributed import distributed_c10d
from torch.futures import Future

from composer_memprof.simulated_gpu.ranks.replacing import replace

#: The backend's name under which torch makes these groups; scripts see the one that they asked for.
_BACKEND = 'simulated'
#: Bytes of a tensor on a GPU up to which its values are computed, on the host.
_SMALL = 4096


def install() -> None:
    """Make every process group one of these, without a store on the network."""
    distributed.Backend.register_backend(_BACKEND, _create, devices=['cpu', 'cuda'])
    make = replace(distributed_c10d, '_new_process_group_helper', _with_simulated_backend)
    _with_simulated_backend.original = make  # type: ignore[attr-defined]
    replace(distributed_c10d, 'rendezvous', _rendezvous)
    replace(distributed_c10d, '_store_based_barrier', _nothing_to_wait_for)
    replace(distributed_c10d, 'split_group', _split_group)
    distributed.split_group = _split_group  # type: ignore[attr-defined]
    replace(distributed, 'TCPStore', _store_of_this_process)


class SimulatedProcessGroup(distributed.ProcessGroup):
    """One rank of a group whose other ranks are not there."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._own_rank = rank
        self._ranks = size

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        self._reduce(tensors, opts)
        return _Done(tensors)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        if opts.rootRank == self._own_rank:
            self._reduce(tensors, opts)
        return _Done(tensors)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        return _Done(tensors)

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        self._flat_copy(outputs[0])
        _fill(outputs[0], inputs[0])
        return _Done(outputs[0])

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        for gathered in outputs:
            for output, own in zip(gathered, inputs, strict=True):
                _fill([output], own)
        return _Done([output for gathered in outputs for output in gathered])

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Work:
        _write(output, lambda: _on_host(own).reshape(1, -1).expand(self._ranks, -1).reshape(output.shape))
        return _Done([output])

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, own in zip(outputs, inputs, strict=True):
            self._allgather_base(output, own)
        return _Done(outputs)

    def gather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        for gathered in outputs:  # none but on the root
            _fill(gathered, inputs[0])
        return _Done([])

    def scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        for scattered in inputs:  # none but on the root
            _fill(outputs, scattered[self._own_rank])
        return _Done(outputs)

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        self._flat_copy(inputs[0])
        for output, scattered in zip(outputs, inputs, strict=True):
            _fill([output], scattered[self._own_rank])
        self._reduce(outputs, opts)
        return _Done(outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> Work:
        _write(output, lambda: _on_host(whole).reshape(self._ranks, -1)[self._own_rank].reshape(output.shape))
        self._reduce([output], opts)
        return _Done([output])

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, whole in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, whole, opts)
        return _Done(outputs)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        for output in outputs:
            if output.shape == inputs[self._own_rank].shape:
                _fill([output], inputs[self._own_rank])
        return _Done(outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: Optional[Sequence[int]] = None,
        input_sizes: Optional[Sequence[int]] = None,
        opts: Any = None,
    ) -> Work:
        _write(output, lambda: self._exchanged(output, _on_host(whole), output_sizes, input_sizes))
        return _Done([output])

    def _exchanged(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: Optional[Sequence[int]],
        input_sizes: Optional[Sequence[int]],
    ) -> torch.Tensor:
        """From each rank the part for this rank; zeros where the sizes say that other ranks hold more."""
        each = len(whole) // self._ranks
        own = whole.split(list(input_sizes or [each] * self._ranks))[self._own_rank]
        received = torch.zeros_like(output, device='cpu')
        for part in received.split(list(output_sizes or [each] * self._ranks)):
            count = min(len(part), len(own))
            part[:count] = own[:count]
        return received

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> Work:
        return _Done(tensors)

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> Work:
        return _Done(tensors, source=src)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Work:
        return _Done(tensors, source=(self._own_rank - 1) % self._ranks)

    def barrier(self, opts: Any = None) -> Work:
        if self._is_nccl():
            torch.zeros(1, device='cuda')
        return _Done([])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        return None

    def _start_coalescing(self, device: torch.device) -> None:
        return None

    def _end_coalescing(self, device: torch.device) -> Work:
        return _Done([])

    # torch 2.15's names
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

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

    def __init__(self, tensors: Sequence[torch.Tensor], source: int = -1) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._source = source

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        devices = list({tensor.device for tensor in self._tensors if tensor.is_cuda})
        future: Future[Any] = Future(devices=devices)
        future.set_result(self._tensors)
        return future


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
    with torch._C._AutoDispatchBelowADInplaceOrView():
        output.copy_(values())


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values without a kernel, after which nothing could be read back from the device."""
    return tensor.cpu() if tensor.device.type == 'cuda' else tensor


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> SimulatedProcessGroup:
    return SimulatedProcessGroup(rank, size)


def _with_simulated_backend(
    size: int, rank: int, ranks: list[int], backend: str, store: Any, name: str, *args: Any, **settings: Any
) -> tuple[Any, Any]:
    """In the place of ``_new_process_group_helper``; checked with torch 2.7.0 and 2.15.0."""
    asked = str(distributed_c10d.BackendConfig(distributed_c10d.Backend(backend)))
    device = settings.pop('device_id', None)
    settings.pop('backend_options', None)
    if size == -1:  # MPI would know
        size, rank, store = int(os.environ['WORLD_SIZE']), int(os.environ['RANK']), HashStore()
    make: Any = _with_simulated_backend.original  # type: ignore[attr-defined]
    group, prefixed = make(size, rank, ranks, distributed.Backend(_BACKEND), store, name, *args, **settings)
    if isinstance(group, SimulatedProcessGroup) and not group._device_types:
        _register(group, asked)
        group._set_group_name(name)
        group._set_group_desc(settings.get('group_desc') or 'undefined')
        if device is not None:
            group.bound_device_id = device
        world = distributed_c10d._world
        world.pg_map[group] = (backend, prefixed)
        world.pg_backend_config[group] = asked
    return group, prefixed


def _register(group: SimulatedProcessGroup, config: str) -> None:
    """Give the group torch's ``fake`` backend for each device, for what asks the group for its backends."""
    kinds = distributed.ProcessGroup.BackendType
    make = getattr(FakeProcessGroup, '_create_internal', FakeProcessGroup)
    for part in config.split(','):
        device, name = part.split(':')
        kind = getattr(kinds, name.upper(), kinds.CUSTOM)
        group._register_backend(torch.device(device), kind, make(group.rank(), group.size()))
        group._set_default_backend(kind)


def _rendezvous(url: Any, rank: int = -1, world_size: int = -1, **settings: Any) -> Iterator[tuple[Any, int, int]]:
    """This rank's place among all, from where torch reads it, and a store of this process alone."""
    from torch.distributed.rendezvous import _query_to_dict, urlparse

    query = _query_to_dict(urlparse(url).query)
    own = rank if rank >= 0 else int(query.get('rank', os.environ['RANK']))
    ranks = world_size if world_size > 0 else int(query.get('world_size', os.environ['WORLD_SIZE']))
    yield HashStore(), own, ranks


def _store_of_this_process(*args: Any, **settings: Any) -> HashStore:
    """In the place of ``TCPStore``, which takes a port and waits for all ranks."""
    return HashStore()


def _nothing_to_wait_for(*args: Any, **settings: Any) -> None:
    """In the place of ``_store_based_barrier``."""


def _split_group(
    parent_pg: Optional[Any] = None,
    split_ranks: Optional[list[list[int]]] = None,
    timeout: Optional[timedelta] = None,
    pg_options: Optional[Any] = None,
    group_desc: Optional[str] = None,
    **settings: Any,
) -> Optional[Any]:
    """In the place of ``split_group``, which only NCCL can: the part that this rank is in, None if it is in none."""
    if not split_ranks:
        raise ValueError('split_ranks cannot be None or empty')
    parent = parent_pg or distributed_c10d._get_default_group()
    of_parent = distributed.get_process_group_ranks(parent)
    for part in split_ranks:
        if parent.rank() in part:
            return distributed.new_group([of_parent[rank] for rank in part], timeout, group_desc=group_desc)
    return None
