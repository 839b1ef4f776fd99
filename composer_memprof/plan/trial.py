"""One trial: a config with changes, run for two batches in a forked process, and what it came to."""

from __future__ import annotations

import dataclasses
from typing import Optional


@dataclasses.dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        overrides: ``key=value`` changes to the config.
        ranks: how many processes the one that runs stands among.
        allocator: ``PYTORCH_CUDA_ALLOC_CONF``.
        checkpointed: class of the modules whose activations are checkpointed; ``''`` for none.
        counts_flops: count the FLOPs of the second batch.
        without_limit: on a device of the same kind whose memory does not end.
    """

    overrides: tuple[str, ...] = ()
    ranks: int = 1
    allocator: str = ''
    checkpointed: str = ''
    counts_flops: bool = False
    without_limit: bool = False


@dataclasses.dataclass(frozen=True)
class Share:
    """A part of the peak."""

    name: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a trial came to. Sizes are in bytes.

    Attributes:
        error: why it did not run, in one line; ``''`` if it did.
        out_of_memory: torch's message if memory ran out, else ``''``.
        allocated: the most in blocks of torch's allocator, from the first batch on.
        reserved: the most that it took from the device, from the first batch on.
        setup: the most in blocks before the first batch, while the model came to the device.
        categories: of the peak, largest first.
        modules: of the peak, largest first.
        batch: in which the peak is.
        phase: in which the peak is.
        microbatch: samples in a microbatch of one rank.
        blocks: class of the repeated modules that hold most of the parameters; ``''`` if there is none.
        flops: of one batch of this rank, None if not counted.
        recomputed_flops: of these, what activation checkpointing repeats.
        host_model: the model's memory on the host while it is built.
        seconds: that the trial took.
    """

    error: str = ''
    out_of_memory: str = ''
    allocated: int = 0
    reserved: int = 0
    setup: int = 0
    categories: list[Share] = dataclasses.field(default_factory=list)
    modules: list[Share] = dataclasses.field(default_factory=list)
    batch: Optional[int] = None
    phase: str = ''
    microbatch: int = 0
    blocks: str = ''
    flops: Optional[int] = None
    recomputed_flops: Optional[int] = None
    host_model: int = 0
    seconds: float = 0.0

    @property
    def fits(self) -> bool:
        return not self.error and not self.out_of_memory
