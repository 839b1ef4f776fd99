"""The kinds of causes: why a run was slow, or ran out of memory.

A cause costs a share, from 0 to 1, of what the run has: of its time, or of the memory that it may use. A leak that goes on
costs all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Optional, Union

from composer_memprof.analysis.run_report.causes.ran_out_kinds import RanOut
from composer_memprof.analysis.run_report.readers import LoaderSettings
from composer_memprof.recorders.host.summary import CopiedObjects, Suspect
from composer_memprof.recorders.step_times.found_pauses import Compiled

#: What takes the time where a DataLoader starts its workers.
WORKERS = 'workers'
#: A cause of a smaller cost is none.
LEAST = 0.1
#: Growth since the first sample that is worth a word, as a share of all.
_GREW = 0.1
#: A leak that fills this share of memory within this many batches is a cause.
_LEAK_SHARE, _LEAK_BATCHES = 0.01, 100_000


@dataclass(frozen=True)
class Waiting:
    """The training waits for data.

    Args:
        rank (int): the rank that waits longest.
        cost (float): the share of the time.
        seconds (float): of a typical batch, spent waiting.
        batch (float): seconds of a typical batch.
        loader (LoaderSettings, optional): how it loads; None if that is not known.
        line (str): of the user's code in which it waits most; ``''`` if that is not known.
        sampler (bool): True if most of it is the sampler's, which runs in the training's process.
    """

    kind: ClassVar[str] = 'waiting'
    rank: int
    cost: float
    seconds: float
    batch: float
    loader: Optional[LoaderSettings]
    line: str
    sampler: bool = False


@dataclass(frozen=True)
class SmallMicrobatches:
    """Batches are split into very many very small microbatches.

    Args:
        rank (int): the rank on which they take longest.
        cost (float): the share of the time that they may cost.
        microbatches (int): of a batch.
        samples (float): of a microbatch.
        seconds (float): of a microbatch's forward and backward.
    """

    kind: ClassVar[str] = 'small_microbatches'
    rank: int
    cost: float
    microbatches: int
    samples: float
    seconds: float


@dataclass(frozen=True)
class TimeTaken:
    """Something beside training's own work takes the time.

    Args:
        rank (int): the rank on which it takes longest.
        cost (float): the share of the time.
        phase (str): ``'eval'``, ``'checkpoint'`` or ``'rest'``: callbacks, loggers, copies to the device. Within forward,
            backward and optimizer: ``'callbacks'``, ``'algorithms'``, ``'metrics'``, ``'loss'``, or ``'step'`` of the user's own optimizer. ``'workers'``: their start.
        seconds (float): of a batch on average, over all batches.
        line (str): of the user's code that takes most of it; ``''`` if that is not known.
        first (float): of ``'workers'``, seconds that the first batch of an epoch waits for them; 0 if that is not known.
        later (float): of ``'workers'``, seconds that another batch waits for data.
    """

    kind: ClassVar[str] = 'time_taken'
    rank: int
    cost: float
    phase: str
    seconds: float
    line: str
    first: float = 0.0
    later: float = 0.0


@dataclass(frozen=True)
class Slowing:
    """Batches take longer and longer.

    Args:
        rank (int): the rank on which they slow down most.
        cost (float): the share of the last batches' time that the first ones did not take.
        phase (str): that takes most of it.
        first (float): seconds of the median batch in the first quarter.
        last (float): in the last quarter.
        line (str): of the user's code that takes most of the phase; ``''`` if that is not known.
    """

    kind: ClassVar[str] = 'slowing'
    rank: int
    cost: float
    phase: str
    first: float
    last: float
    line: str


@dataclass(frozen=True)
class Collecting:
    """Python's garbage collector takes the time.

    Args:
        rank (int): the rank on which it takes longest.
        cost (float): the share of the time.
        seconds (float): of all collections.
        collections (int): that visited every object.
    """

    kind: ClassVar[str] = 'garbage_collection'
    rank: int
    cost: float
    seconds: float
    collections: int


@dataclass(frozen=True)
class Compiling:
    """torch.compile compiles a function again and again.

    Args:
        rank (int): the rank on which it takes longest.
        cost (float): the share of the time.
        compiled (Compiled): the function, and why.
    """

    kind: ClassVar[str] = 'compiling'
    rank: int
    cost: float
    compiled: Compiled


@dataclass(frozen=True)
class DeviceLeak:
    """A place in the code of which each batch leaves memory allocated.

    Args:
        rank (int): the rank on which it grows fastest.
        cost (float): 1, or less if it would take very long to fill the memory; the share of memory that ran out.
        per_batch (int): bytes more after each batch.
        total (int): bytes by the end of the recording.
        unit (str): what a batch is called.
        at (list[str]): the lines that allocate, innermost first; of several places those of the largest.
        places (int): places in the code that allocate what is kept.
        kept_by (str): what keeps it, in words; ``''`` if that is not known.
        left (int, optional): the batches until the memory is full; None if that is not known, or it is full.
        on_host (bool): True if the training runs on a CPU, so that a copy on the host takes the same memory.
    """

    kind: ClassVar[str] = 'device_leak'
    rank: int
    cost: float
    per_batch: int
    total: int
    unit: str
    at: list[str]
    places: int
    kept_by: str
    left: Optional[int]
    on_host: bool = False


@dataclass(frozen=True)
class LeakBetweenWindows:
    """Memory grows from batch to batch where no window records it.

    Args:
        rank (int): the rank on which it grows fastest.
        cost (float): 1, or less if it would take very long to fill the memory.
        per_batch (float): bytes more with each batch, on average.
        grown (int): bytes more by the last look.
        begin (int): the batch of the first look.
        end (int): the batch of the last look.
        kept_by (str): the container that gets longer meanwhile, and what keeps it, in words; ``''`` if none was found.
        on_host (bool): True if the training runs on a CPU.
    """

    kind: ClassVar[str] = 'leak_between_windows'
    rank: int
    cost: float
    per_batch: float
    grown: int
    begin: int
    end: int
    kept_by: str
    on_host: bool


@dataclass(frozen=True)
class LeftWhole:
    """FSDP shards the model, but leaves large modules whole on each rank.

    Args:
        rank (int): the rank that holds most.
        cost (float): the share of the peak that sharding them would free, with their gradients and optimizer state.
        modules (dict[str, int]): bytes of their parameters, largest first.
        frees (int): bytes that sharding them would free.
    """

    kind: ClassVar[str] = 'left_whole'
    rank: int
    cost: float
    modules: dict[str, int]
    frees: int


@dataclass(frozen=True)
class Straggler:
    """The other ranks wait for one.

    Args:
        rank (int): the rank that is slow.
        cost (float): the share of a batch that it takes longer.
        phase (str): in which it takes longer: ``'data'``, ``'forward'`` and so on.
        seconds (float): of that phase.
        others (float): seconds of the median of the other ranks.
        line (str): of the user's code that takes most of the phase; ``''`` if that is not known.
        size (float): how many times as many tokens, or samples, its batches have; 1 if that is not known.
        collecting (float): seconds of a batch, on average, that Python's garbage collector takes of it.
        loader (LoaderSettings, optional): how it loads; None if that is not known.
        together (list[int]): all ranks that are slow in that phase, this one included.
        host (str): the machine of all of them and of no other rank; ``''`` if they are on several, or that is not known.
    """

    kind: ClassVar[str] = 'straggler'
    rank: int
    cost: float
    phase: str
    seconds: float
    others: float
    line: str
    size: float
    collecting: float
    loader: Optional[LoaderSettings]
    together: list[int]
    host: str


@dataclass(frozen=True)
class HostLeak:
    """Host memory grows with every batch.

    Args:
        rank (int): the rank on which it grows fastest.
        cost (float): 1, or less if it would take very long to fill the memory.
        suspect (Suspect): the process that grows.
        ranks (int): how many ranks grow.
        limit (int, optional): bytes at which the job is killed.
        kept_by (str): the container that gets longer meanwhile, and what keeps it, in words; ``''`` if none was found.
        line (str): that allocates what is left; ``''`` if no recording has seen it.
    """

    kind: ClassVar[str] = 'host_leak'
    rank: int
    cost: float
    suspect: Suspect
    ranks: int
    limit: Optional[int]
    kept_by: str = ''
    line: str = ''


@dataclass(frozen=True)
class HostLeft:
    """A line has left host memory again and again within a window of memray.

    Args:
        rank (int): the rank on which it leaves most with each batch.
        cost (float): 1, or less if it would take very long to fill the memory.
        line (str): that allocates.
        left (int): bytes that it has left at the end of the window.
        batches (int): of the window.
    """

    kind: ClassVar[str] = 'host_left'
    rank: int
    cost: float
    line: str
    left: int
    batches: int

    @property
    def per_batch(self) -> float:
        """Bytes that it leaves with each batch."""
        return self.left / self.batches


@dataclass(frozen=True)
class CopiedByWorkers:
    """Each DataLoader worker copies the Python objects of the data set, page by page (copy-on-write).

    Args:
        rank (int): the rank whose workers copy most.
        cost (float): the share of memory that all workers will have copied.
        copied (CopiedObjects): what they have copied, and of what.
        limit (int, optional): bytes at which the job is killed.
    """

    kind: ClassVar[str] = 'copied_by_workers'
    rank: int
    cost: float
    copied: CopiedObjects
    limit: Optional[int]


#: Causes that take time.
SLOW = (Waiting, TimeTaken, Slowing, Collecting, Compiling, Straggler, SmallMicrobatches)


@dataclass(frozen=True)
class HostFull:
    """A process was killed when the memory of the host was full.

    Args:
        rank (int): the rank that was killed.
        cost (float): 1.
        used (int): bytes that the job used in the last sample before, or at most.
        limit (int): bytes at which the job is killed.
        suspect (Suspect, optional): the process that clearly grows; None if none does, or the run was too short to tell.
        processes (int): bytes of the process and its children at most.
        name (str): the process that took most more since the first sample, for people.
        phase (str): in which the training process took most of that; ``''`` if another process did.
        more (int): bytes that it took more.
        short (bool): True if the run was too short to tell a leak from a peak.
        kept_by (str): the container that got longer meanwhile, and what keeps it, in words; ``''`` if none was found.
        copied (CopiedObjects, optional): what DataLoader workers have copied, if it explains that memory was full.
    """

    kind: ClassVar[str] = 'host_full'
    rank: int
    cost: float
    used: int
    limit: int
    suspect: Optional[Suspect]
    processes: int
    name: str
    phase: str
    more: int
    short: bool
    kept_by: str = ''
    copied: Optional[CopiedObjects] = None

    @property
    def grew(self) -> bool:
        """True if what the process took more is worth a word."""
        return self.more >= _GREW * self.processes


Cause = Union[
    Waiting,
    TimeTaken,
    Slowing,
    Collecting,
    Compiling,
    Straggler,
    SmallMicrobatches,
    DeviceLeak,
    LeakBetweenWindows,
    LeftWhole,
    HostLeak,
    HostLeft,
    HostFull,
    CopiedByWorkers,
    RanOut,
]


def leak_cost(per_batch: float, memory: int) -> float:
    """1 for a leak that fills the memory within some thousand batches, less for a slower one, 0 if it never matters."""
    if per_batch <= 0 or memory <= 0 or per_batch * _LEAK_BATCHES < _LEAK_SHARE * memory:
        return 0.0
    return min(1.0, per_batch * _LEAK_BATCHES / 10 / memory)
