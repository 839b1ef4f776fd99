"""Runs a trial in this process, which ends with it: two batches of the config's own Trainer on the simulated GPU."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import torch
from composer import ComposerModel, Trainer
from composer.core import Callback, State, passes
from composer.loggers import Logger
from composer.utils import collect_env

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import read_snapshot
from composer_memprof.artifacts.writing.temporary_folders import temporary_folder
from composer_memprof.config import build_trainer, load
from composer_memprof.messages import log_error
from composer_memprof.plans.evaluating import evaluating, save_nothing
from composer_memprof.plans.model_structure import (
    blocks_of,
    repeated,
    says_what_to_checkpoint,
    summed_by_block,
    unit_of_all_blocks,
)
from composer_memprof.plans.trial import CHECKPOINT_MARK, Outcome, Share, Trial
from composer_memprof.plans.untouched_weights import UntouchedWeights
from composer_memprof.recorders.allocations.out_of_memory import out_of_memory_in
from composer_memprof.recorders.flops.recorder import FlopsRecorder
from composer_memprof.recorders.flops.result import OperationFlops
from composer_memprof.recorders.tensors import tensors_in
from composer_memprof.recorders.torch_private import cuda_allocator
from composer_memprof.recorders.torch_private.wrappers import apply_activation_checkpointing
from composer_memprof.simulated_gpu import ranks
from composer_memprof.simulated_gpu.ranks import traffic
from composer_memprof.simulated_gpu.this_process import VARIABLE, as_variable, figures
from composer_memprof.simulation.observer import StepObserver, device_peaks
from composer_memprof.simulation.step_time import StepTime, extended

_BATCHES = 2
#: With ``few_microbatches``: the first one makes gradients, the second one adds to them, the third one is as all others.
_FEW = 3
#: Why a trial ends whose loader has no batch; Composer would ask it again and again.
DATA_ENDS = 'the data are less than one batch'
#: Config keys that a trial ignores, because they read or write files or stores.
_LEFT_OUT = ('loggers', 'profiler', 'load_path', 'autoresume')
#: Composer's passes over algorithms that import all algorithms.
_PASSES_THAT_IMPORT = (
    'sort_selective_backprop_first',
    'sort_low_precision_layernorm_last',
    'warn_if_multiple_loss_interpolation',
)
#: Further ones that a trial without an evaluation and a checkpoint ignores.
_OF_EVALUATION = ('eval_loader', 'eval_interval', 'save_folder')


def run_trial(config: str, trial: Trial) -> Outcome:
    """Run a trial of a config file. Call it in a process of its own, before CUDA has started."""
    began = time.monotonic()
    _set_environment(trial)
    run = _Run(trial)
    with temporary_folder('trial') as folder:
        return _outcome_of(run, trial, _trial_config(config, trial, folder), began)


def _outcome_of(run: _Run, trial: Trial, config: dict[str, Any], began: float) -> Outcome:
    try:
        trainer = build_trainer(config, callbacks=[run], make_model=run.make_model)
        if trial.few_microbatches:
            data: Any = trainer._train_data_spec
            split = data.split_batch
            data.split_batch = lambda batch, size: split(batch, size)[: run.microbatches]
        trainer.fit()
        outcome = run.outcome(time.monotonic() - began)
    except Exception as error:
        shortage = out_of_memory_in(error)
        if shortage is None:
            log_error('a trial failed')
            return Outcome(error=' '.join(f'{type(error).__name__}: {error}'.split())[:1500])
        return run.outcome(time.monotonic() - began, ' '.join(str(shortage).split()))
    if not trial.is_timed:
        return outcome
    return replace(outcome, time=run.time_a_batch(trainer), seconds=time.monotonic() - began)


def _microbatch(state: State) -> tuple[int, int, int]:
    """Samples in a microbatch of the batch that is there, as many as the config asks for, and samples in the batch."""
    samples = max((len(tensor) for tensor in tensors_in(state.batch) if tensor.dim()), default=0)
    size: Any = state.device_train_microbatch_size
    asked = int(size) if size else samples
    return min(asked, samples), asked, samples


def _drop_outputs(state: State) -> None:
    values: Any = state
    values.outputs = None


def _is_done_again(operation: OperationFlops) -> bool:
    """True if checkpointing recomputes this forward operation in backward. Attention kernels that recompute internally
    do not count.
    """
    return operation.forward_flops > 0 and operation.recomputed_flops > 0


def _by_collective(sent: Counter[tuple[str, bool]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for (name, _), size in sent.items():
        sums[name] += size
    return dict(sums.most_common())


def _set_environment(trial: Trial) -> None:
    # The Trainer logs the CPU's name, for which it starts a process that takes a second.
    collect_env.get_cpu_model = lambda: ''  # type: ignore[assignment]
    if trial.allocator:
        os.environ['PYTORCH_CUDA_ALLOC_CONF'] = trial.allocator
    if trial.without_limit:
        here = figures()
        os.environ[VARIABLE] = as_variable({**here, 'total_memory': int(here['total_memory']) * 64})
    if trial.ranks > 1:
        os.environ.update(ranks.environment(trial.ranks, ranks_per_node=trial.ranks_per_node))
        ranks.install()


def _trial_config(path: str, trial: Trial, folder: Path) -> dict[str, Any]:
    left_out = _LEFT_OUT if trial.with_evaluation else (*_LEFT_OUT, *_OF_EVALUATION)
    config = {key: value for key, value in load(path, trial.overrides).items() if key not in left_out}
    if trial.with_evaluation:
        config = evaluating(config, folder)
        save_nothing()
    if not config.get('algorithms'):
        _order_no_algorithms()
    callbacks = config.get('callbacks') or {}
    config['callbacks'] = {name: value for name, value in callbacks.items() if not name.startswith('memprof_')}
    config['callbacks'].pop('lr_monitor', None)
    loader = config['train_loader']
    if isinstance(loader, dict) and 'num_workers' in loader:  # the batches are the same without workers
        kept = {key: value for key, value in loader.items() if key not in ('prefetch_factor', 'persistent_workers')}
        config['train_loader'] = {**kept, 'num_workers': 0}
    return {**config, 'device': 'gpu', 'max_duration': f'{_BATCHES}ba', 'progress_bar': False}


def _order_no_algorithms() -> None:
    """Let Composer's Trainer leave out the passes that order and check its algorithms, in this process, for good.

    These passes import all of Composer's algorithms, and Transformers with them, even if a config names none.
    """
    for name in _PASSES_THAT_IMPORT:
        setattr(passes, name, lambda algorithms, event: algorithms)


class _Run(Callback):
    """Follows one run, and makes its outcome."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._observer = StepObserver()
        self._observer.follow_steps()
        self._flops: Optional[FlopsRecorder] = None
        self._microbatch = self._asked_microbatch = self._batch_samples = 0
        #: With ``few_microbatches``, those of a batch that run.
        self.microbatches = _FEW
        self._blocks = ''
        self._repeated: dict[str, int] = {}
        self._says_what_to_checkpoint = False
        self._one_unit = ''
        self._precision = ''
        self._sent_before: Counter[tuple[str, bool]] = Counter()
        self._sent: Counter[tuple[str, bool]] = Counter()
        self._host_model = 0
        #: Whether the outcome is known, and a batch more is timed.
        self.is_seen = False
        self._setup = 0
        self._evaluations = self._checkpoints = 0
        cuda_allocator.call_when_started(self._observer.begin)

    def make_model(self, build: Callable[[], ComposerModel]) -> ComposerModel:
        """The model that the Trainer gets."""
        with UntouchedWeights():
            model = build()
        self._host_model = sum(each.nbytes for each in model.parameters() if each.device.type == 'cpu')
        self._blocks, self._repeated = blocks_of(model), repeated(model)
        self._says_what_to_checkpoint = says_what_to_checkpoint(model)
        trial = self._trial
        blocks = [module for module in model.modules() if type(module).__name__ == self._blocks]
        for number, block in enumerate(blocks):
            for attribute in trial.marked:
                setattr(block, attribute, attribute != CHECKPOINT_MARK or number % trial.every == 0)
        if trial.checkpointed:
            wanted = [module for module in model.modules() if type(module).__name__ == trial.checkpointed]
            chosen = set(map(id, wanted[:: trial.every]))
            apply_activation_checkpointing(model, check_fn=lambda module: id(module) in chosen)
        return model

    def time_a_batch(self, trainer: Trainer) -> Optional[StepTime]:
        """Train one batch more, to see how long it takes; None if that is not known.

        It comes after the outcome: to listen to operators changes what torch allocates a little.
        """
        self.is_seen = True
        microbatches = self._batch_samples / max(1, self._microbatch)
        try:
            if not self._trial.few_microbatches or microbatches <= _FEW:
                return self._time_of_next_batch(trainer)
            self.microbatches = _FEW - 1
            shorter = self._time_of_next_batch(trainer)
            self.microbatches = _FEW
            longer = self._time_of_next_batch(trainer)
        except Exception:
            log_error('a batch could not be timed')
            return None
        return None if shorter is None or longer is None else extended(shorter, longer, microbatches - _FEW)

    def _time_of_next_batch(self, trainer: Trainer) -> Optional[StepTime]:
        trainer.fit(duration='1ba')
        return self._observer.time

    def fit_start(self, state: State, logger: Logger) -> None:
        if self.is_seen:
            return
        self._setup = max((each.allocated for each in device_peaks()), default=0)
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
        self._observer.restart()
        self._observer.follow_model(state.model)
        self._precision = state.precision.value
        self._one_unit = unit_of_all_blocks(state.model, self._blocks)

    def batch_start(self, state: State, logger: Logger) -> None:
        self._microbatch, self._asked_microbatch, self._batch_samples = _microbatch(state)
        self._sent_before = traffic.sent()
        if self._trial.counts_flops and not self.is_seen and state.timestamp.batch == _BATCHES - 1:
            self._flops = FlopsRecorder(state.model)
            self._flops.__enter__()
        if self.is_seen:
            self._observer.begin_step()

    def after_loss(self, state: State, logger: Logger) -> None:
        if self._trial.drops_outputs and not state.train_metrics:
            _drop_outputs(state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        if state.timestamp.batch == 0:
            raise ValueError(DATA_ENDS)

    def batch_end(self, state: State, logger: Logger) -> None:
        self._observer.end_step()
        if self._trial.drops_outputs:  # metrics of training have read them by now
            _drop_outputs(state)
        if self._flops is not None and self._flops.is_recording:
            self._flops.__exit__(None, None, None)
        self._sent = traffic.sent() - self._sent_before

    def eval_end(self, state: State, logger: Logger) -> None:
        self._evaluations += 1

    def state_dict(self) -> dict[str, Any]:
        """As a checkpoint asks for it."""
        self._checkpoints += 1
        return {}

    def outcome(self, seconds: float, out_of_memory: str = '') -> Outcome:
        report = report_on(read_snapshot(self._observer.snapshot(rank=0)))
        peak = None if report.largest_device is None else report.largest_device.peak
        peaks = device_peaks()
        modules = [] if peak is None else [Share(each.module, each.bytes) for each in peak.modules]
        flops = self._flops.result if self._flops is not None else None
        return Outcome(
            out_of_memory=out_of_memory,
            allocated=max((each.allocated for each in peaks), default=0),
            reserved=max((each.reserved for each in peaks), default=0),
            setup=self._setup,
            categories=[] if peak is None else [Share(each.category, each.bytes) for each in peak.categories],
            modules=modules,
            by_block=summed_by_block(modules, self._repeated),
            places=[] if peak is None else peak.holders,
            batch=None if peak is None else peak.batch,
            phase='' if peak is None else peak.phase,
            microbatch=self._microbatch,
            asked_microbatch=self._asked_microbatch,
            batch_samples=self._batch_samples,
            precision=self._precision,
            blocks=self._blocks,
            says_what_to_checkpoint=self._says_what_to_checkpoint,
            recomputes=None if flops is None else any(_is_done_again(each) for each in flops.operations),
            one_unit=self._one_unit,
            flops=None if flops is None else flops.batch_flops,
            recomputed_flops=None if flops is None else flops.recomputed_flops,
            sent=_by_collective(self._sent),
            sent_between_nodes=sum(size for (_, between), size in self._sent.items() if between),
            host_model=self._host_model,
            evaluations=self._evaluations,
            checkpoints=self._checkpoints,
            seconds=seconds,
        )
