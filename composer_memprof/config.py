"""From a YAML run config to Composer's Trainer. Every name in it is checked before anything is built or trained."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import composer.callbacks
import composer.loggers
import composer.optim
import torch
from composer import Trainer
from composer.core import Callback
from composer.loggers import LoggerDestination
from composer.utils.parallelism import FSDP2Config
from composer.utils.reproducibility import seed_all
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from composer_memprof.callbacks import CALLBACKS
from composer_memprof.examples.byte_gpt import ByteGPT
from composer_memprof.examples.text_files import text_files
from composer_memprof.messages import allowed_are, nearest
from composer_memprof.schedule.spans import parse_span

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
#: Composer's own callbacks under LLM Foundry's names, and ours.
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
_BUILT = ('model', 'train_loader', 'eval_loader', 'optimizer', 'scheduler', 'callbacks', 'loggers')
#: What the Trainer would take, and is built here under another name or not at all.
_NOT_PASSED = (
    'self',
    'model',
    'train_dataloader',
    'eval_dataloader',
    'optimizers',
    'schedulers',
    'callbacks',
    'loggers',
    'algorithms',
    'algorithm_passes',
    'profiler',
)


class ConfigError(ValueError):
    """A user's mistake in a config: one line that names the key, the value and what is allowed."""


def load(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a YAML config, with ``key=value`` overrides (dotted keys) on top.

    Raises:
        ConfigError: if it can't be read, or has a key that nothing takes.
    """
    for override in overrides:
        if '=' not in override or override.startswith('='):
            raise ConfigError(f'{override!r} is no override; give key=value, as max_duration=20ba')
    try:
        config = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(list(overrides)))
        values = OmegaConf.to_container(config, resolve=True)
    except (OSError, YAMLError, OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(f'{path} can not be read: {_one_line(error)}') from error
    if not isinstance(values, dict):
        raise ConfigError(f'{path} must hold keys and values, not a {type(values).__name__}')
    allowed = (*_BUILT, *(name for name in inspect.signature(Trainer).parameters if name not in _NOT_PASSED))
    for key, value in {str(key): value for key, value in values.items()}.items():
        if key not in allowed:
            raise ConfigError(f'{key}={_shown(value)} is unknown; {allowed_are(allowed, key)}')
    for key in ('model', 'train_loader', 'max_duration'):
        if values.get(key) is None:
            raise ConfigError(f'{key} is missing; a config needs model, train_loader and max_duration')
    try:
        parse_span(values['max_duration'], 'max_duration')
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return {str(key): value for key, value in values.items()}


def build_trainer(config: Mapping[str, Any], loggers: Sequence[LoggerDestination] = ()) -> Trainer:
    """The Trainer of a loaded config, with further ``loggers`` on top.

    Raises:
        ConfigError: naming the key, the value and what is allowed.
    """
    if isinstance(config.get('seed'), int):
        seed_all(config['seed'])  # the model's first weights too; the Trainer, which is given the model, seeds later
    callbacks = _build_each(config, 'callbacks', ALL_CALLBACKS)
    own_loggers = _build_each(config, 'loggers', LOGGERS)
    train_loader = _build_named(config, 'train_loader', LOADERS)
    eval_loader = _build_named(config, 'eval_loader', LOADERS)
    model = _build_named(config, 'model', MODELS)
    optimizer = _build_named(config, 'optimizer', OPTIMIZERS, model.parameters())
    rest = {key: value for key, value in config.items() if key not in _BUILT}
    if 'parallelism_config' in rest:
        rest['parallelism_config'] = _parallelism(rest['parallelism_config'])
    try:
        return Trainer(
            model=model,
            train_dataloader=train_loader,
            eval_dataloader=eval_loader,
            optimizers=optimizer,
            schedulers=_build_named(config, 'scheduler', SCHEDULERS),
            callbacks=callbacks,
            loggers=[*own_loggers, *loggers],
            **rest,
        )
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise ConfigError(_one_line(error)) from error


def _parallelism(section: Any) -> Any:
    """As the Trainer takes it; it chooses FSDP2 by an environment variable, a config by ``{fsdp2: {...}}``."""
    if not isinstance(section, dict) or 'fsdp2' not in section:
        return section
    rest = {name: value for name, value in section.items() if name != 'fsdp2'}
    if 'fsdp' in rest:
        raise ConfigError('parallelism_config has fsdp and fsdp2; give one of them')
    return {**rest, 'fsdp': _call('parallelism_config.fsdp2', FSDP2Config, section['fsdp2'])}


def _build_each(config: Mapping[str, Any], key: str, known: Mapping[str, Callable[..., Any]]) -> list[Any]:
    """``{name: {argument: value}}``, each with its arguments."""
    section = config.get(key)
    if section is None:
        return []
    if not isinstance(section, dict):
        raise ConfigError(f'{key}={section!r} must be a mapping of names to their arguments')
    return [
        _call(f'{key}.{name}', _look_up(f'{key}.{name}', name, known), arguments) for name, arguments in section.items()
    ]


def _build_named(config: Mapping[str, Any], key: str, known: Mapping[str, Callable[..., Any]], *given: Any) -> Any:
    """``{name: ..., argument: value}``; the name is known, or the dotted path of the user's own builder."""
    section = config.get(key)
    if section is None:
        return None
    if isinstance(section, str):
        section = {'name': section}
    if not isinstance(section, dict) or not isinstance(section.get('name'), str):
        raise ConfigError(f'{key}={section!r} needs a name; allowed are {", ".join(known)}, or a dotted path')
    arguments = {name: value for name, value in section.items() if name != 'name'}
    return _call(key, _look_up(f'{key}.name', section['name'], known), arguments, *given)


def _look_up(key: str, name: Any, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    if name in known:
        return known[name]
    if isinstance(name, str) and '.' in name:
        return _import(key, name)
    what = key if key.endswith(f'.{name}') else f'{key}={name!r}'
    raise ConfigError(f'{what} is unknown; a dotted path, or {allowed_are(list(known), name)}')


def _import(key: str, dotted: str) -> Callable[..., Any]:
    module_name, _, attribute = dotted.rpartition('.')
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigError(f'{key}={dotted!r}: {module_name} does not import: {_one_line(error)}') from error
    found = getattr(module, attribute, None)
    if not callable(found):
        names = [name for name in vars(module) if callable(getattr(module, name)) and not name.startswith('_')]
        raise ConfigError(f'{key}={dotted!r}: {module_name} has no builder {attribute!r}{nearest(attribute, names)}')
    return found


def _call(key: str, builder: Callable[..., Any], arguments: Optional[Mapping[str, Any]], *given: Any) -> Any:
    """Call ``builder``, having checked the arguments' names against its signature."""
    if arguments is not None and not isinstance(arguments, dict):
        raise ConfigError(f'{key}={arguments!r} must be a mapping of arguments, as {{}}')
    arguments = arguments or {}
    parameters = list(_parameters_of(builder))[len(given) :]
    allowed = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    if len(allowed) == len(parameters):
        for name, value in arguments.items():
            if name not in allowed:
                raise ConfigError(f'{key}.{name}={_shown(value)} is unknown; {allowed_are(allowed, name)}')
    for parameter in parameters:
        needed = parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if needed and parameter.name not in arguments:
            raise ConfigError(f'{key}.{parameter.name} is missing; {key} takes {", ".join(allowed)}')
    try:
        return builder(*given, **arguments)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f'{key}: {_one_line(error)}') from error


def _parameters_of(builder: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(builder).parameters.values():
        if parameter.kind is not parameter.VAR_POSITIONAL:
            yield parameter


def _one_line(error: BaseException) -> str:
    return ' '.join(str(error).split()) or type(error).__name__


def _shown(value: Any) -> str:
    """A value as a person typed it; what a mapping holds may be a secret."""
    return '{...}' if isinstance(value, dict) else repr(value)
