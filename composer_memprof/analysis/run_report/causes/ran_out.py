"""Why the memory of a device ran out: what filled it, the most particular reason first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from composer_memprof.analysis.memory.findings.attribution import PlaceShare
from composer_memprof.analysis.memory.findings.failure import OutOfMemoryEvent
from composer_memprof.analysis.memory.findings.peak import Peak
from composer_memprof.analysis.memory.snapshot_report import DeviceReport, SnapshotReport
from composer_memprof.analysis.module_names import sums_by_layer
from composer_memprof.analysis.run_report.causes.ran_out_kinds import (
    NOT_FOUND,
    Activations,
    BesideModel,
    EvaluationGraph,
    Fragmented,
    FullPrecision,
    GatheredWhole,
    KeptFromBefore,
    KeptInEvaluation,
    LargeBatch,
    LargeCheckpoint,
    LargeEvaluation,
    LargeRequest,
    LargeTensors,
    Layers,
    ModelState,
    OutsideUse,
    RanOut,
)
from composer_memprof.analysis.run_report.causes.ran_out_parts import KeptInCopy, UnusedGradients, UselessGraph
from composer_memprof.analysis.snapshot.model import Frame
from composer_memprof.vocabulary import (
    ACTIVATION,
    ALL_GATHER,
    BACKWARD,
    CHECKPOINT,
    EVAL,
    FORWARD,
    GRADIENT,
    KEPT,
    OPTIMIZER_STATE,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
    UNSHARDED_PARAMETER,
    WITHIN_BATCH,
)

#: From these shares on each is a reason: of the device, of the reserved memory, of what is in use.
_OUTSIDE, _IDLE, _STATE, _BESIDE, _MOST, _IN_FP32 = 0.25, 0.15, 0.6, 0.25, 0.4, 0.5
#: A copy of the model, and gradients that nobody uses, are a reason from this share of what is in use on.
_OF_COPIES = 0.15
#: From these on: what saving a checkpoint takes; the largest piece that FSDP gathers.
_OF_SAVING, _ONE_PIECE = 0.1, 0.25
#: The CUDA context and libraries take this much, in bytes.
_CONTEXT = 2 << 30
#: A batch is larger than those before it if it needs this many times as much; an evaluation likewise.
_LARGER = 1.5
#: Tensors of this share are large; a line that allocates more than so many of them is of a model's layers.
_LARGE_TENSOR, _FEW = 0.06, 3
#: An optimizer has at least this share of all optimizer state, if it matters.
_OF_STATE = 0.2
#: Logits are at least this share of the large tensors; the others are their copies.
_OF_FEW = 0.3
_STANDING = (PARAMETER, GRADIENT, OPTIMIZER_STATE)
_OF_A_BATCH = (ACTIVATION, TEMPORARY, UNKNOWN)
#: In the text or the name of lines that make logits, or use them; and of lines that make attention's scores.
_OF_LOGITS = ('logit', 'cross_entropy', 'crossentropy', 'lm_head', 'log_softmax', 'nll_loss')
_OF_HEADS = ('head(', 'loss(', 'loss_f', 'vocab', 'criterion', 'output(', 'shift', 'unembed')
_OF_ATTENTION = (
    *('scores', 'attn_weights', 'attention_probs', 'attn_probs', 'softmax(', 'baddbmm', 'bmm('),
    *('.transpose(-2, -1)', '.transpose(-1, -2)', '.transpose(2, 3)', '.mT', 'scaled_dot_product_attention'),
)


def reasons(rank: int, report: SnapshotReport, ranks: int) -> list[RanOut]:
    """Why the memory of a rank's device ran out.

    Args:
        rank (int): the rank.
        report (SnapshotReport): on the snapshot that was taken when it ran out.
        ranks (int): how many ranks train.
    """
    oom = report.oom
    device = next((each for each in report.devices if oom is not None and each.device == (oom.device or 0)), None)
    if oom is None or device is None or device.at_failure is None or not device.at_failure.bytes:
        return []
    return list(_Reasons(rank, report, device, device.at_failure, oom, ranks).all())


class _Reasons:
    def __init__(
        self,
        rank: int,
        report: SnapshotReport,
        device: DeviceReport,
        failed: Peak,
        oom: OutOfMemoryEvent,
        ranks: int,
    ) -> None:
        self._rank, self._report, self._device, self._failed, self._oom = rank, report, device, failed, oom
        self._ranks = ranks
        self._by_category = {share.category: share.bytes for share in failed.categories}

    def all(self) -> Iterator[RanOut]:
        tensors, beside = self._large_tensors(), self._beside()
        if tensors is not None and beside is not None:
            tensors, beside = (tensors, None) if tensors.cost > beside.cost else (None, beside)
        few, idle = tensors if tensors is not None and not tensors.what else None, self._fragmented()
        if few is not None and idle is not None and few.cost > 2 * idle.cost:
            idle = None  # in one piece it would not suffice for long
        found = [
            self._outside(),
            self._checkpoint(),
            self._gathered(),
            self._useless_graph(),
            self._evaluation_graph(),
            self._kept_in_evaluation(),
            self._kept_from_before(),
            self._evaluation(),
            self._batch(),
            self._request(),
            self._unused_gradients(),
            self._copies(),
            self._state(),
            beside,
            tensors if tensors is not None and tensors.what else None,
            idle,
            few,
            self._precision(),
            self._layers(),
            self._activations(),
        ]
        return (each for each in found if each is not None)

    def _share(self, size: float) -> float:
        return size / self._failed.bytes

    def _outside(self) -> Optional[OutsideUse]:
        oom = self._oom
        if oom.total is None or oom.reserved is None or oom.free is None:
            return None
        outside = oom.total - oom.reserved - oom.free
        if outside < max(_OUTSIDE * oom.total, _CONTEXT):
            return None
        return OutsideUse(self._rank, outside / oom.total, outside, oom.total)

    def _fragmented(self) -> Optional[Fragmented]:
        oom = self._oom
        if oom.reserved is None or oom.allocated is None or not oom.requested:
            return None
        idle = oom.reserved - oom.allocated
        if idle + (oom.free or 0) < oom.requested or idle < _IDLE * oom.reserved:
            return None
        lost = self._device.fragmentation
        hole = min(lost.largest_hole or 0, idle) if lost is not None else 0
        return Fragmented(self._rank, idle / oom.reserved, idle, hole, oom.requested)

    def _state(self) -> Optional[ModelState]:
        parts = {key: size for key in _STANDING if (size := self._by_category.get(key, 0))}
        total = sum(parts.values())
        if self._share(total) < _STATE:
            return None
        parts = dict(sorted(parts.items(), key=lambda part: -part[1]))
        return ModelState(self._rank, self._share(total), total, parts, self._ranks, self._optimizer_steps())

    def _optimizer_steps(self) -> dict[str, int]:
        """The bytes of optimizer state by line, if more than one line has a large part: each steps an optimizer."""
        lines: dict[str, int] = defaultdict(int)
        for place in self._failed.holders:
            if place.category == OPTIMIZER_STATE and place.frames:
                lines[place.frames[0].short()] += place.bytes
        least = _OF_STATE * self._by_category.get(OPTIMIZER_STATE, 0)
        large = {line: size for line, size in lines.items() if size >= least}
        return dict(sorted(large.items(), key=lambda line: -line[1])) if len(large) > 1 else {}

    def _beside(self) -> Optional[BesideModel]:
        kept = self._report.beside or self._from_before()
        total = sum(kept.values())
        if self._share(total) < _BESIDE:
            return None
        return BesideModel(self._rank, min(self._share(total), 1.0), total, dict(kept))

    def _from_before(self) -> dict[str, int]:
        """What lay on the device before and is of no known kind, if what keeps it was not found."""
        size = sum(place.bytes for place in self._failed.holders if place.before and place.category == UNKNOWN)
        return {NOT_FOUND: size} if size else {}

    def _evaluation(self) -> Optional[LargeEvaluation]:
        if not self._is_in(EVAL):
            return None
        peaks = self._device.phase_peaks
        training = max((peaks.get(phase, 0) for phase in WITHIN_BATCH), default=0)
        size = self._failed.bytes + (self._oom.requested or 0)
        if size < _LARGER * training:
            return None
        places = _by_line(place for place in self._failed.holders if place.category in _OF_A_BATCH)
        return LargeEvaluation(self._rank, 1 - training / size, size, training, places)

    def _useless_graph(self) -> Optional[UselessGraph]:
        for each in self._device.of_no_use:
            if self._share(each.bytes) >= _BESIDE:
                return UselessGraph(self._rank, self._share(each.bytes), each.bytes, each.module, each.line.short())
        return None

    def _unused_gradients(self) -> Optional[UnusedGradients]:
        by_layer = sums_by_layer(self._report.unused_gradients.items())
        modules = {name: int(size) for name, size in by_layer.items()}
        total = sum(modules.values())
        if self._share(total) < _OF_COPIES:
            return None
        state = sum(self._by_category.get(key, 0) for key in _STANDING)
        return UnusedGradients(self._rank, self._share(total), total, modules, state)

    def _copies(self) -> Optional[KeptInCopy]:
        copies, state = self._report.copies, self._state()
        total = sum(copies.values())
        if state is None or self._share(total) < _OF_COPIES:
            return None
        return KeptInCopy(self._rank, self._share(total), total, dict(copies), state.bytes)

    def _activations(self) -> Optional[Activations]:
        places = _by_line(place for place in self._failed.holders if place.category in _OF_A_BATCH)
        total = sum(places.values())
        if not (self._is_in(FORWARD) or self._is_in(BACKWARD)) or self._share(total) < _MOST:
            return None
        return Activations(self._rank, self._share(total), total, places)

    def _evaluation_graph(self) -> Optional[EvaluationGraph]:
        # Without events of its own forward, as in a loop, what an evaluation keeps for backward counts as temporary.
        kinds = (ACTIVATION, TEMPORARY)
        size, module = sum(self._by_category.get(kind, 0) for kind in kinds), self._report.evaluation_graph
        # One that nothing has marked as an evaluation is in no phase of training.
        is_training = any(map(self._is_in, WITHIN_BATCH))
        if module is None or is_training or self._share(size) < _MOST:
            return None
        line = next(iter(_by_line(place for place in self._failed.holders if place.category in kinds)), '')
        return EvaluationGraph(self._rank, self._share(size), size, module, line)

    def _kept_in_evaluation(self) -> Optional[KeptInEvaluation]:
        kept = self._device.growth.in_evaluation
        if kept is None or not self._is_in(EVAL) or self._share(kept.bytes) < _MOST:
            return None
        line = kept.frames[0].short() if kept.frames else 'a line that was not recorded'
        return KeptInEvaluation(self._rank, self._share(kept.bytes), kept.bytes, kept.batches, line, kept.kept_by)

    def _kept_from_before(self) -> Optional[KeptFromBefore]:
        if self._device.growth.steady is not None:
            return None
        kept = [place for place in self._failed.holders if place.category == KEPT and 'in forward' in place.rule]
        size = _bytes(kept)
        if self._share(size) < _BESIDE:
            return None
        return KeptFromBefore(self._rank, self._share(size), size, _by_line(kept))

    def _checkpoint(self) -> Optional[LargeCheckpoint]:
        state = sum(self._by_category.get(key, 0) for key in _STANDING)
        size = self._failed.bytes + (self._oom.requested or 0) - state
        if not self._is_in(CHECKPOINT) or self._share(size) < _OF_SAVING:
            return None
        places = _by_line(place for place in self._failed.holders if place.category not in _STANDING)
        return LargeCheckpoint(self._rank, min(self._share(size), 1.0), size, state, places, self._ranks)

    def _gathered(self) -> Optional[GatheredWhole]:
        gathered = [place for place in self._failed.holders if place.category in (ALL_GATHER, UNSHARDED_PARAMETER)]
        size, piece = _bytes(gathered), max((place.largest for place in gathered), default=0)
        if self._share(size) < _MOST or self._share(piece) < _ONE_PIECE:
            return None
        layers = sums_by_layer((share.module, share.bytes) for share in self._failed.modules)
        blocks = (name.partition('*')[0] + '*' for name in layers if '*' in name)
        return GatheredWhole(self._rank, self._share(size), size, piece, next(blocks, ''))

    def _is_in(self, phase: str) -> bool:
        return (self._oom.phase or self._failed.phase).startswith(phase)

    def _batch(self) -> Optional[LargeBatch]:
        if len(self._device.batches) < 2:
            return None
        *before, last = self._device.batches
        size, peak = self._failed.bytes + (self._oom.requested or 0), max(each.bytes for each in before)
        inputs = max(each.inputs for each in before)
        factor = last.inputs / inputs if inputs else 0.0
        if size < _LARGER * peak or (factor and factor < _LARGER):
            return None
        return LargeBatch(self._rank, 1 - peak / size, last.batch, size, peak, factor)

    def _request(self) -> Optional[LargeRequest]:
        requested, in_use = self._oom.requested or 0, self._failed.bytes
        if requested <= in_use:
            return None
        frames = self._oom.asked
        line = frames[0].short() if frames else 'the backward pass' if self._is_in(BACKWARD) else ''
        what, in_batch = self._what(frames[:1], ''), self._is_in(FORWARD) or self._is_in(BACKWARD)
        return LargeRequest(self._rank, requested / (requested + in_use), requested, in_use, what, line, in_batch)

    def _large_tensors(self) -> Optional[LargeTensors]:
        of_batch = [place for place in self._failed.holders if place.category in _OF_A_BATCH]
        least = _LARGE_TENSOR * self._failed.bytes
        few = [place for place in of_batch if place.largest >= least and place.bytes <= _FEW * place.largest]
        groups: dict[str, list[PlaceShare]] = defaultdict(list)
        for place in of_batch:
            what = self._what(place.frames[:1], place.module)
            if what == 'attention' or (place in few and what):
                groups[what].append(place)
        asked = self._what(self._oom.asked[:1], '')
        if asked == 'logits' or _bytes(groups['logits']) >= _OF_FEW * _bytes(few):
            groups['logits'] = few  # those without a telling name are copies of them
        sizes = {what: _bytes(places) for what, places in groups.items()}
        if asked and self._oom.requested:
            sizes[asked] = sizes.get(asked, 0) + self._oom.requested
        what = max(sizes, key=lambda key: sizes[key], default='')
        whole = self._failed.bytes + (self._oom.requested or 0 if what else 0)
        if not what or sizes[what] < _MOST * whole:
            what, groups[''] = '', few
        places = groups[what]
        total = _bytes(places)
        if not places or (not what and total < _MOST * self._failed.bytes):
            return None
        count, lines = sum(place.large for place in places), _by_line(places)
        return LargeTensors(self._rank, self._share(total), total, count, what, lines)

    def _what(self, frames: Sequence[Frame], module: str) -> str:
        """What a line makes, by its text, its function and its module: logits, attention's scores, or ``''``."""
        frame = frames[0] if frames else None
        text = self._report.sources.get(f'{frame.filename}:{frame.line}', '') if frame is not None else ''
        words = f'{text} {frame.name if frame is not None else ""} {module.rpartition(".")[2]}'.lower()
        if any(word in words for word in _OF_LOGITS):
            return 'logits'
        if any(word.lower() in words for word in _OF_ATTENTION):
            return 'attention'
        return 'logits' if any(word in words for word in _OF_HEADS) else ''

    def _precision(self) -> Optional[FullPrecision]:
        size = self._by_category.get(ACTIVATION, 0) + self._by_category.get(TEMPORARY, 0)
        is_training = (self._oom.phase or self._failed.phase) in (FORWARD, BACKWARD)
        if self._report.precision != 'fp32' or not is_training or self._share(size) < _IN_FP32:
            return None
        if self._report.meta.device != 'cuda':
            return None
        return FullPrecision(self._rank, self._share(size), size)

    def _layers(self) -> Optional[Layers]:
        call = self._device.repeated
        if call is None or self._share(call.bytes) < _MOST:
            return None
        return Layers(self._rank, min(self._share(call.bytes), 1.0), call.bytes, call.name)


def _line(place: PlaceShare) -> str:
    if place.frames:
        return place.frames[0].short()
    return 'the backward pass' if BACKWARD in place.rule else 'a line that was not recorded'


def _by_line(places: Iterable[PlaceShare]) -> dict[str, int]:
    """The bytes by the line that allocates them, largest first."""
    lines: dict[str, int] = defaultdict(int)
    for place in places:
        lines[_line(place)] += place.bytes
    return dict(sorted(lines.items(), key=lambda line: -line[1]))


def _bytes(places: Sequence[PlaceShare]) -> int:
    return sum(place.bytes for place in places)
