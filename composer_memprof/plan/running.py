"""Runs a trial in this process, which ends with it: two batches of the config's own Trainer on the simulated GPU."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Optional

import torch
from composer import ComposerModel
from composer.core import Callback, State
from composer.loggers import Logger
from composer.utils import collect_env

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import read_snapshot
from composer_memprof.config import build_trainer, load
from composer_memprof.messages import log_error
from composer_memprof.plan.trial import Outcome, Share, Trial
from composer_memprof.plan.untouched_weights import UntouchedWeights
from composer_memprof.recorders.allocations.out_of_memory import out_of_memory_in
from composer_memprof.recorders.flops.recorder import FlopsRecorder
from composer_memprof.recorders.tensors import tensors_in
from composer_memprof.recorders.torch_private import cuda_allocator
from composer_memprof.recorders.torch_private.wrappers import apply_activation_checkpointing
from composer_memprof.simulated_gpu import ranks
from composer_memprof.simulated_gpu.this_process import VARIABLE, as_variable, figures
from composer_memprof.simulation.observer import StepObserver, device_peaks

_BATCHES = 2
#: Why a trial ends whose loader has no batch; Composer would ask it again and again.
DATA_ENDS = 'the data are less than one batch'
#: What a plan needs not: they write files, load them, or talk to a store.
_LEFT_OUT = ('loggers', 'eval_loader', 'eval_interval', 'profiler', 'save_folder', 'load_path', 'autoresume')


def run_trial(config: str, trial: Trial) -> Outcome:
    """Run a trial of a config file. Call it in a process of its own, before CUDA has started."""
    began = time.monotonic()
    _set_environment(trial)
    run = _Run(trial)
    try:
        trainer = build_trainer(_trial_config(config, trial), callbacks=[run], make_model=run.make_model)
        trainer.fit()
    except Exception as error:
        shortage = out_of_memory_in(error)
        if shortage is None:
            log_error('a trial failed')
            return Outcome(error=' '.join(f'{type(error).__name__}: {error}'.split())[:1500])
        return run.outcome(time.monotonic() - began, ' '.join(str(shortage).split()))
    return run.outcome(time.monotonic() - began)


def _microbatch(state: State) -> int:
    """Samples in a microbatch of the batch that is there."""
    samples = max((len(tensor) for tensor in tensors_in(state.batch) if tensor.dim()), default=0)
    size: Any = state.device_train_microbatch_size
    return min(int(size), samples) if size else samples


def _set_environment(trial: Trial) -> None:
    # The Trainer logs the CPU's name, for which it starts a process that takes a second.
    collect_env.get_cpu_model = lambda: ''  # type: ignore[assignment]
    if trial.allocator:
        os.environ['PYTORCH_CUDA_ALLOC_CONF'] = trial.allocator
    if trial.without_limit:
        here = figures()
        os.environ[VARIABLE] = as_variable({**here, 'total_memory': int(here['total_memory']) * 64})
    if trial.ranks > 1:
        os.environ.update(ranks.environment(trial.ranks))
        ranks.install()


def _trial_config(path: str, trial: Trial) -> dict[str, Any]:
    config = {key: value for key, value in load(path, trial.overrides).items() if key not in _LEFT_OUT}
    callbacks = config.get('callbacks') or {}
    config['callbacks'] = {name: value for name, value in callbacks.items() if not name.startswith('memprof_')}
    config['callbacks'].pop('lr_monitor', None)
    loader = config['train_loader']
    if isinstance(loader, dict) and 'num_workers' in loader:  # the batches are the same without workers
        kept = {key: value for key, value in loader.items() if key not in ('prefetch_factor', 'persistent_workers')}
        config['train_loader'] = {**kept, 'num_workers': 0}
    return {**config, 'device': 'gpu', 'max_duration': f'{_BATCHES}ba', 'progress_bar': False}


class _Run(Callback):
    """Follows one run, and makes its outcome."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._observer = StepObserver()
        self._observer.follow_steps()
        self._flops: Optional[FlopsRecorder] = None
        self._microbatch = 0
        self._blocks = ''
        self._host_model = 0
        self._setup = 0
        cuda_allocator.call_when_started(self._observer.begin)

    def make_model(self, build: Callable[[], ComposerModel]) -> ComposerModel:
        """The model that the Trainer gets."""
        with UntouchedWeights():
            model = build()
        self._host_model = sum(each.nbytes for each in model.parameters() if each.device.type == 'cpu')
        self._blocks = blocks_of(model)
        wanted = self._trial.checkpointed
        if wanted:
            apply_activation_checkpointing(model, check_fn=lambda module: type(module).__name__ == wanted)
        return model

    def fit_start(self, state: State, logger: Logger) -> None:
        self._setup = max((each.allocated for each in device_peaks()), default=0)
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
        self._observer.restart()
        self._observer.follow_model(state.model)

    def batch_start(self, state: State, logger: Logger) -> None:
        self._microbatch = _microbatch(state)
        if self._trial.counts_flops and state.timestamp.batch == _BATCHES - 1:
            self._flops = FlopsRecorder(state.model)
            self._flops.__enter__()

    def epoch_end(self, state: State, logger: Logger) -> None:
        if state.timestamp.batch == 0:
            raise ValueError(DATA_ENDS)

    def batch_end(self, state: State, logger: Logger) -> None:
        if self._flops is not None:
            self._flops.__exit__(None, None, None)

    def outcome(self, seconds: float, out_of_memory: str = '') -> Outcome:
        report = report_on(read_snapshot(self._observer.snapshot(rank=0)))
        peak = max((device.peak for device in report.devices), key=lambda peak: peak.bytes, default=None)
        peaks = device_peaks()
        flops = self._flops.result if self._flops is not None else None
        return Outcome(
            out_of_memory=out_of_memory,
            allocated=max((each.allocated for each in peaks), default=0),
            reserved=max((each.reserved for each in peaks), default=0),
            setup=self._setup,
            categories=[] if peak is None else [Share(each.category, each.bytes) for each in peak.categories],
            modules=[] if peak is None else [Share(each.module, each.bytes) for each in peak.modules],
            batch=None if peak is None else peak.batch,
            phase='' if peak is None else peak.phase,
            microbatch=self._microbatch,
            blocks=self._blocks,
            flops=None if flops is None else flops.batch_flops,
            recomputed_flops=None if flops is None else flops.recomputed_flops,
            host_model=self._host_model,
            seconds=seconds,
        )


def blocks_of(model: torch.nn.Module) -> str:
    """The class of the repeated modules that together hold most parameters, such as a transformer's blocks.

    >>> blocks_of(torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(8, 2) for _ in range(3))))
    'TransformerEncoderLayer'
    """
    held: Counter[str] = Counter()
    for container in model.modules():
        children = list(container.children())
        kinds = {type(child) for child in children}
        if len(children) > 1 and len(kinds) == 1 and any(True for _ in children[0].children()):
            held[type(children[0]).__name__] += sum(each.numel() for each in container.parameters())
    return max(held, key=lambda name: held[name], default='')
