"""One trial: a config with changes, run for two batches in a forked process, and what it came to."""

from __future__ import annotations

import dataclasses
from typing import Optional

from composer_memprof.analysis.memory.findings.attribution import PlaceShare
from composer_memprof.simulation.step_time import StepTime
from composer_memprof.simulation.verdict import DOES_NOT_FIT, NOT_SEEN, verdict_of

#: The attribute of a module by which Composer decides whether its activations are checkpointed or offloaded.
CHECKPOINT_MARK = '_activation_checkpointing'
#: The attribute of a module that makes it a unit of FSDP.
UNIT_MARK = '_fsdp_wrap'


@dataclasses.dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        overrides: ``key=value`` changes to the config.
        ranks: how many processes the one that runs stands among.
        ranks_per_node: of these; None for 8, or all if they are fewer.
        allocator: ``PYTORCH_CUDA_ALLOC_CONF``.
        checkpointed: class of the modules whose activations are checkpointed; ``''`` for none.
        every: 2 to checkpoint or offload the activations of every second block, in place of each.
        marked: attributes that are set to True on each of the model's blocks, for Composer to read.
        counts_flops: count the FLOPs of the second batch.
        few_microbatches: run the first three of each batch. The others repeat what the third one does.
        extends_time: with ``few_microbatches``, time a batch of two and one of three; each further microbatch takes as
            long as the third one.
        drops_outputs: as if forward returned the loss alone, so that nothing else is kept until the next forward.
        without_limit: on a device of the same kind whose memory does not end.
        with_evaluation: evaluate, if the config does, and write a checkpoint after each batch.
    """

    overrides: tuple[str, ...] = ()
    ranks: int = 1
    ranks_per_node: Optional[int] = None
    allocator: str = ''
    checkpointed: str = ''
    every: int = 1
    marked: tuple[str, ...] = ()
    counts_flops: bool = False
    few_microbatches: bool = False
    extends_time: bool = False
    drops_outputs: bool = False
    without_limit: bool = False
    with_evaluation: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether one more batch shows how long it takes; a batch that is cut short does not."""
        return self.extends_time or not self.few_microbatches

    @property
    def nodes(self) -> int:
        return self.ranks // (self.ranks_per_node or min(self.ranks, 8))


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
        by_block: the same, with the modules within all repeated blocks summed, as ``blocks.* (32)``.
        places: the places in the code that hold the peak, largest first.
        batch: in which the peak is.
        phase: in which the peak is.
        microbatch: samples in a microbatch of one rank.
        asked_microbatch: as the config has it; larger than ``microbatch`` where a batch has fewer samples.
        batch_samples: in a batch of one rank.
        precision: of the Trainer, such as ``amp_bf16``.
        blocks: class of the repeated modules that hold most of the parameters; ``''`` if there is none.
        says_what_to_checkpoint: whether the model tells Composer which modules to checkpoint.
        recomputes: whether backward runs parts of forward again, as checkpoints do; None if FLOPs were not counted.
        one_unit: class of the FSDP unit in which all blocks are gathered at once; ``''`` if each has its own.
        flops: of one batch of this rank, None if not counted.
        recomputed_flops: done again beside these, by checkpoints and by attention that keeps no scores.
        sent: by this rank in the second batch, by collective; by the formula of ``simulated_gpu.ranks.traffic``.
        sent_between_nodes: the part of it within groups of ranks that are on several nodes.
        host_model: the model's memory on the host while it is built.
        seconds: that the trial took.
        timed_out: whether it was ended for that.
        time: of a further batch on the device; None if it is not known.
        assumed: what the figures rest on, one sentence each.
        evaluations: how many ended.
        checkpoints: how many were written.
    """

    error: str = ''
    out_of_memory: str = ''
    allocated: int = 0
    reserved: int = 0
    setup: int = 0
    categories: list[Share] = dataclasses.field(default_factory=list)
    modules: list[Share] = dataclasses.field(default_factory=list)
    by_block: list[Share] = dataclasses.field(default_factory=list)
    places: list[PlaceShare] = dataclasses.field(default_factory=list)
    batch: Optional[int] = None
    phase: str = ''
    microbatch: int = 0
    asked_microbatch: int = 0
    batch_samples: int = 0
    precision: str = ''
    blocks: str = ''
    says_what_to_checkpoint: bool = False
    recomputes: Optional[bool] = None
    one_unit: str = ''
    flops: Optional[int] = None
    recomputed_flops: Optional[int] = None
    sent: dict[str, int] = dataclasses.field(default_factory=dict)
    sent_between_nodes: int = 0
    host_model: int = 0
    seconds: float = 0.0
    timed_out: bool = False
    time: Optional[StepTime] = None
    assumed: list[str] = dataclasses.field(default_factory=list)
    evaluations: int = 0
    checkpoints: int = 0

    @property
    def fits(self) -> bool:
        return not self.error and not self.out_of_memory

    @property
    def limited_by_batch(self) -> str:
        """That a batch has fewer samples than the microbatch that was asked for, in a clause; else ``''``."""
        if self.asked_microbatch <= self.microbatch:
            return ''
        return f'the microbatch is limited to {self.microbatch} samples by the batch; set a larger batch_size'

    def verdict(self, available: int) -> str:
        """One of those in :mod:`composer_memprof.simulation.verdict`.

        Args:
            available: bytes that torch's allocator can have.
        """
        if self.error:
            return NOT_SEEN
        return DOES_NOT_FIT if self.out_of_memory else verdict_of(self.reserved, available)

    @property
    def step_flops(self) -> Optional[int]:
        """Those of one batch, with what is done again."""
        return None if self.flops is None else self.flops + (self.recomputed_flops or 0)

    @property
    def all_sent(self) -> int:
        return sum(self.sent.values())
