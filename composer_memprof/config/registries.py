"""The names that a config may use for models, loaders, optimizers, callbacks and the like."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import composer.callbacks
import composer.loggers
import composer.optim
import torch
from composer.core import Algorithm, Callback
from composer.loggers import LoggerDestination

from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.examples.text_files import text_files

MODELS: dict[str, Callable[..., Any]] = {'byte_gpt': ByteGPT}
LOADERS: dict[str, Callable[..., Any]] = {'text_files': text_files}
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    'adamw': torch.optim.AdamW,
    'sgd': torch.optim.SGD,
    'decoupled_adamw': composer.optim.DecoupledAdamW,
    'decoupled_sgdw': composer.optim.DecoupledSGDW,
}
SCHEDULERS: dict[str, Callable[..., Any]] = {
    'constant_with_warmup': composer.optim.ConstantWithWarmupScheduler,
    'cosine_with_warmup': composer.optim.CosineAnnealingWithWarmupScheduler,
    'linear_decay_with_warmup': composer.optim.LinearWithWarmupScheduler,
}
#: Composer's own callbacks by LLM Foundry's names, and those of this package.
ALL_CALLBACKS: dict[str, Callable[..., Callback]] = {
    'activation_monitor': composer.callbacks.ActivationMonitor,
    'early_stopper': composer.callbacks.EarlyStopper,
    'export_for_inference': composer.callbacks.ExportForInferenceCallback,
    'free_outputs': composer.callbacks.FreeOutputs,
    'generate_callback': composer.callbacks.Generate,
    'image_visualizer': composer.callbacks.ImageVisualizer,
    'load_checkpoint': composer.callbacks.LoadCheckpoint,
    'lr_monitor': composer.callbacks.LRMonitor,
    'memory_monitor': composer.callbacks.MemoryMonitor,
    'memory_snapshot': composer.callbacks.MemorySnapshot,
    'mlperf': composer.callbacks.MLPerfCallback,
    'nan_monitor': composer.callbacks.NaNMonitor,
    'oom_observer': composer.callbacks.OOMObserver,
    'optimizer_monitor': composer.callbacks.OptimizerMonitor,
    'runtime_estimator': composer.callbacks.RuntimeEstimator,
    'speed_monitor': composer.callbacks.SpeedMonitor,
    'system_metrics_monitor': composer.callbacks.SystemMetricsMonitor,
    'threshold_stopper': composer.callbacks.ThresholdStopper,
    **CALLBACKS,
}
LOGGERS: dict[str, Callable[..., LoggerDestination]] = {
    'tensorboard': composer.loggers.TensorboardLogger,
    'file': composer.loggers.FileLogger,
    'file_logger': composer.loggers.FileLogger,
    'console': composer.loggers.ConsoleLogger,
    'inmemory': composer.loggers.InMemoryLogger,
    'mlflow': composer.loggers.MLFlowLogger,
    'remote_uploader_downloader': composer.loggers.RemoteUploaderDownloader,
    'wandb': composer.loggers.WandBLogger,
}


@cache
def _algorithms() -> dict[str, Callable[..., Algorithm]]:
    import composer.algorithms

    return {
        algorithm.__module__.split('.')[2]: algorithm
        for algorithm in vars(composer.algorithms).values()
        if isinstance(algorithm, type) and issubclass(algorithm, Algorithm)
    }


class _Algorithms(Mapping[str, Callable[..., Algorithm]]):
    """Composer's algorithms, imported when a config first asks for one.

    Importing them imports Transformers, which takes as long as a whole trial of ``plan``.
    """

    def __getitem__(self, name: str) -> Callable[..., Algorithm]:
        return _algorithms()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_algorithms())

    def __len__(self) -> int:
        return len(_algorithms())


#: Composer's algorithms by the names of their modules, as LLM Foundry names the four that it has.
ALGORITHMS: Mapping[str, Callable[..., Algorithm]] = _Algorithms()
