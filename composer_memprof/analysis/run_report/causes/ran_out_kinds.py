"""The kinds of causes for which the memory of a device ran out. ``cost`` is the share of what was in use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Union

from composer_memprof.analysis.run_report.causes.ran_out_parts import KeptInCopy, UnusedGradients, UselessGraph

#: What keeps memory that no search has found.
NOT_FOUND = 'what was not found, such as a variable of the script'


@dataclass(frozen=True)
class OutsideUse:
    """Other processes hold much of the device, or this one outside of torch.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share of the device.
        bytes (int): that are used outside of torch.
        total (int): bytes of the device.
    """

    kind: ClassVar[str] = 'outside_use'
    rank: int
    cost: float
    bytes: int
    total: int


@dataclass(frozen=True)
class Fragmented:
    """Enough memory lay idle in torch's allocator, but not in one piece.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share of the reserved memory.
        idle (int): bytes.
        hole (int): bytes of the largest piece.
        requested (int): bytes of the allocation that failed.
    """

    kind: ClassVar[str] = 'fragmented'
    rank: int
    cost: float
    idle: int
    hole: int
    requested: int


@dataclass(frozen=True)
class ModelState:
    """Parameters, gradients and optimizer state alone nearly fill the device.

    Args:
        rank (int): the rank that ran out first.
        cost (float): their share.
        bytes (int): of all of them.
        parts (dict[str, int]): by category, largest first.
        ranks (int): how many ranks train.
        steps (dict[str, int]): bytes of optimizer state by the line that stepped an optimizer, if several lines did.
    """

    kind: ClassVar[str] = 'model_state'
    rank: int
    cost: float
    bytes: int
    parts: dict[str, int]
    ranks: int
    steps: dict[str, int]


@dataclass(frozen=True)
class BesideModel:
    """Much of the memory was allocated before the training and is no part of the model.

    Args:
        rank (int): the rank that ran out first.
        cost (float): its share.
        bytes (int): of all of it.
        kept (dict[str, int]): bytes by what keeps them, largest first.
    """

    kind: ClassVar[str] = 'beside_model'
    rank: int
    cost: float
    bytes: int
    kept: dict[str, int]


@dataclass(frozen=True)
class LargeEvaluation:
    """Evaluation needs more than training.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share that is not training's.
        bytes (int): in use when memory ran out.
        training (int): the peak of training, if it was recorded; else 0.
        places (dict[str, int]): bytes of what evaluation allocated, by line, largest first.
    """

    kind: ClassVar[str] = 'large_evaluation'
    rank: int
    cost: float
    bytes: int
    training: int
    places: dict[str, int]


@dataclass(frozen=True)
class EvaluationGraph:
    """An evaluation records a graph, so that activations are kept for a backward pass that never comes.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share of the activations.
        bytes (int): of the activations.
        module (str): the first module that recorded one; ``''`` for the model itself.
        line (str): of the user's code that allocates most of them.
    """

    kind: ClassVar[str] = 'evaluation_graph'
    rank: int
    cost: float
    bytes: int
    module: str
    line: str


@dataclass(frozen=True)
class LargeCheckpoint:
    """Saving a checkpoint takes memory beside the model's own state.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share of what saving takes.
        bytes (int): that saving takes, with the allocation that failed.
        state (int): bytes of the model's own state.
        places (dict[str, int]): bytes by the line that allocates them, largest first.
        ranks (int): how many ranks train.
    """

    kind: ClassVar[str] = 'large_checkpoint'
    rank: int
    cost: float
    bytes: int
    state: int
    places: dict[str, int]
    ranks: int


@dataclass(frozen=True)
class GatheredWhole:
    """FSDP gathers much of the model in one piece: too few of its modules are units of FSDP.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share of what is gathered.
        bytes (int): of what is gathered, and its copies.
        piece (int): bytes of the largest piece.
        layers (str): the layers that could be units, such as ``'blocks.*'``; ``''`` if they are not known.
    """

    kind: ClassVar[str] = 'gathered_whole'
    rank: int
    cost: float
    bytes: int
    piece: int
    layers: str


@dataclass(frozen=True)
class LargeBatch:
    """One batch needs far more than those before it: its inputs are longer.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share that the batches before did not need.
        batch (int): its number.
        bytes (int): in use when memory ran out.
        before (int): the peak of the batches before.
        factor (float): how many times as large its inputs are; 0 if they are not known.
    """

    kind: ClassVar[str] = 'large_batch'
    rank: int
    cost: float
    batch: int
    bytes: int
    before: int
    factor: float


@dataclass(frozen=True)
class LargeTensors:
    """A few tensors, or those of one kind, took most of the memory that ran out.

    Args:
        rank (int): the rank that ran out first.
        cost (float): their share.
        bytes (int): of all of them.
        tensors (int): how many they are.
        what (str): ``'logits'``, ``'attention'`` or ``''``.
        places (dict[str, int]): bytes by the line that allocates them, largest first.
    """

    kind: ClassVar[str] = 'large_tensors'
    rank: int
    cost: float
    bytes: int
    tensors: int
    what: str
    places: dict[str, int]


@dataclass(frozen=True)
class LargeRequest:
    """The allocation that failed is larger than all that was in use.

    Args:
        rank (int): the rank that ran out first.
        cost (float): its share of the two together.
        bytes (int): that were asked for.
        in_use (int): bytes in use when they were.
        what (str): as of :class:`LargeTensors`.
        line (str): that asked; ``''`` if that is not known.
        in_batch (bool): True if forward or backward asked, so that a smaller microbatch asks for less.
    """

    kind: ClassVar[str] = 'large_request'
    rank: int
    cost: float
    bytes: int
    in_use: int
    what: str
    line: str
    in_batch: bool


@dataclass(frozen=True)
class KeptInEvaluation:
    """Each batch of an evaluation leaves memory allocated until the evaluation ends.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share of what they left.
        bytes (int): that they left.
        batches (int): of the evaluation that left some.
        line (str): that allocates it.
        kept_by (str): what keeps it, in words; ``''`` if that is not known.
    """

    kind: ClassVar[str] = 'kept_in_evaluation'
    rank: int
    cost: float
    bytes: int
    batches: int
    line: str
    kept_by: str


@dataclass(frozen=True)
class KeptFromBefore:
    """What earlier batches allocated in forward was not freed; too few were recorded to tell how much each leaves.

    Args:
        rank (int): the rank that ran out first.
        cost (float): its share.
        bytes (int): of it.
        places (dict[str, int]): bytes by the line that allocated them, largest first.
    """

    kind: ClassVar[str] = 'kept_from_before'
    rank: int
    cost: float
    bytes: int
    places: dict[str, int]


@dataclass(frozen=True)
class FullPrecision:
    """The training computes in fp32.

    Args:
        rank (int): the rank that ran out first.
        cost (float): the share of activations.
        bytes (int): of activations.
    """

    kind: ClassVar[str] = 'full_precision'
    rank: int
    cost: float
    bytes: int


@dataclass(frozen=True)
class Layers:
    """The activations of a model's layers.

    Args:
        rank (int): the rank that ran out first.
        cost (float): their share.
        bytes (int): of all layers.
        name (str): of the layers and the line that calls them, or that line alone.
    """

    kind: ClassVar[str] = 'layers'
    rank: int
    cost: float
    bytes: int
    name: str


@dataclass(frozen=True)
class Activations:
    """The activations of a batch, of which no few tensors and no layers stand out.

    Args:
        rank (int): the rank that ran out first.
        cost (float): their share.
        bytes (int): of all of them.
        places (dict[str, int]): bytes by the line that allocates them, largest first.
    """

    kind: ClassVar[str] = 'activations'
    rank: int
    cost: float
    bytes: int
    places: dict[str, int]


RanOut = Union[
    OutsideUse,
    Fragmented,
    ModelState,
    BesideModel,
    LargeEvaluation,
    EvaluationGraph,
    KeptInEvaluation,
    KeptFromBefore,
    LargeCheckpoint,
    GatheredWhole,
    LargeBatch,
    LargeRequest,
    LargeTensors,
    FullPrecision,
    Layers,
    UselessGraph,
    KeptInCopy,
    UnusedGradients,
    Activations,
]
RAN_OUT = (
    OutsideUse,
    Fragmented,
    ModelState,
    BesideModel,
    LargeEvaluation,
    EvaluationGraph,
    KeptInEvaluation,
    KeptFromBefore,
    LargeCheckpoint,
    GatheredWhole,
    LargeBatch,
    LargeRequest,
    LargeTensors,
    FullPrecision,
    Layers,
    UselessGraph,
    KeptInCopy,
    UnusedGradients,
    Activations,
)
