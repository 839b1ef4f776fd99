"""Builds Composer's Trainer from a loaded config."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from composer import Trainer
from composer.core import Callback
from composer.loggers import LoggerDestination
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule
from composer.utils.parallelism import FSDP2Config
from composer.utils.reproducibility import seed_all

from composer_memprof.callbacks.framework.base import ProfilingCallback
from composer_memprof.config.arguments import ConfigError, call, check_names, one_line, one_line_errors, shown
from composer_memprof.config.reading import BUILT
from composer_memprof.config.registries import (
    ALGORITHMS,
    ALL_CALLBACKS,
    LOADERS,
    LOGGERS,
    MODELS,
    OPTIMIZERS,
    SCHEDULERS,
)
from composer_memprof.messages import allowed_are, logger, must_be, nearest, warn


def build_trainer(
    config: Mapping[str, Any],
    loggers: Sequence[LoggerDestination] = (),
    callbacks: Sequence[Callback] = (),
    make_model: Callable[[Callable[[], Any]], Any] = lambda build: build(),
) -> Trainer:
    """The Trainer of a loaded config, with further ``loggers`` and ``callbacks``.

    Args:
        make_model (Callable): called with a function that builds the model; returns what the Trainer gets.

    Raises:
        ConfigError: naming the key, the value and what is allowed.
    """
    _set_log_level(config.get('python_log_level'))
    if isinstance(config.get('seed'), int):
        seed_all(config['seed'])  # for the model's first weights: the Trainer seeds after the model is built
    own_callbacks = _build_each(config, 'callbacks', ALL_CALLBACKS)
    _check_stages(config, own_callbacks)
    own_loggers = _build_each(config, 'loggers', LOGGERS)
    algorithms = _build_each(config, 'algorithms', ALGORITHMS)
    profiler = _build_profiler(config.get('profiler'))
    train_loader = _build_named(config, 'train_loader', LOADERS)
    eval_loader = _build_named(config, 'eval_loader', LOADERS)
    model = make_model(lambda: _build_named(config, 'model', MODELS))
    optimizer = _build_named(config, 'optimizer', OPTIMIZERS, model.parameters())
    scheduler = _build_named(config, 'scheduler', SCHEDULERS)
    rest = {key: value for key, value in config.items() if key not in BUILT}
    if 'parallelism_config' in rest:
        rest['parallelism_config'] = _parallelism(rest['parallelism_config'])
    with one_line_errors('', Trainer, rest):
        return Trainer(
            model=model,
            train_dataloader=train_loader,
            eval_dataloader=eval_loader,
            optimizers=optimizer,
            schedulers=scheduler,
            callbacks=[*own_callbacks.values(), *callbacks],
            loggers=[*own_loggers.values(), *loggers],
            algorithms=list(algorithms.values()),
            profiler=profiler,
            **rest,
        )


def _set_log_level(level: Any) -> None:
    """Set the level of this package's logger, as the Trainer does for Composer's."""
    if level is None:
        return
    try:
        logger.setLevel(level.upper())
    except (AttributeError, ValueError):
        allowed = 'debug, info, warning, error or critical'
        raise ConfigError(str(must_be('python_log_level', allowed, level))) from None


def _check_stages(config: Mapping[str, Any], callbacks: Mapping[str, Callback]) -> None:
    """Refuse a callback whose stages do not occur in this run; warn if only some of them do."""
    occurring = {'train', 'eval'} if config.get('eval_loader') is not None else {'train'}
    for name, callback in callbacks.items():
        stages = callback.when.stages if isinstance(callback, ProfilingCallback) else occurring
        missing = sorted(stages - occurring)
        if missing:
            needs = 'an eval_loader, which the config lacks' if 'eval' in missing else 'Trainer.predict in Python'
            message = f'callbacks.{name}: stages={sorted(stages)} needs {needs}'
            if not stages & occurring:
                raise ConfigError(message)
            warn(f'{message}; only {sorted(stages & occurring)} is recorded')


def _build_profiler(section: Any) -> Optional[Profiler]:
    """Composer's profiler, from the keys that LLM Foundry takes: a schedule, a trace handler, the Profiler's arguments."""
    if not section:
        return None
    if not isinstance(section, dict):
        raise ConfigError(f'profiler must be a mapping of arguments, not {shown(section)}')
    if section.get('schedule') is None:
        raise ConfigError('profiler.schedule is missing; give one, such as {skip_first: 1, active: 2}')
    schedule = call('profiler.schedule', cyclic_schedule, section['schedule'])
    traces = section.get('json_trace_handler')
    handlers = [call('profiler.json_trace_handler', JSONTraceHandler, traces)] if traces else []
    rest = {name: value for name, value in section.items() if name not in ('schedule', 'json_trace_handler')}
    return call('profiler', Profiler, rest, schedule, handlers)


def _parallelism(section: Any) -> Any:
    """As the Trainer takes it, and ``{fsdp2: {...}}``, for which the Trainer reads an environment variable."""
    if section is None:
        return None
    if not isinstance(section, dict):
        raise ConfigError(f'parallelism_config must be a mapping, such as {{fsdp2: {{}}}}, not {shown(section)}')
    check_names('parallelism_config', section, ('fsdp', 'fsdp2', 'tp'))
    if 'fsdp2' not in section:
        return section
    rest = {name: value for name, value in section.items() if name != 'fsdp2'}
    if 'fsdp' in rest:
        raise ConfigError('parallelism_config has fsdp and fsdp2; give one of them')
    return {**rest, 'fsdp': call('parallelism_config.fsdp2', FSDP2Config, section['fsdp2'])}


def _build_each(config: Mapping[str, Any], key: str, known: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Each of ``{name: {argument: value}}``, by name."""
    section = config.get(key)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise ConfigError(f'{key} must be a mapping of names to their arguments, not {shown(section)}')
    return {
        name: call(f'{key}.{name}', _look_up(f'{key}.{name}', name, known), arguments)
        for name, arguments in section.items()
    }


def _build_named(config: Mapping[str, Any], key: str, known: Mapping[str, Callable[..., Any]], *given: Any) -> Any:
    """Builds ``{name: …, argument: value}``; the name is a known one, or the dotted path of the user's own builder."""
    section = config.get(key)
    if section is None:
        return None
    if isinstance(section, str):
        section = {'name': section}
    if not isinstance(section, dict) or not isinstance(section.get('name'), str):
        raise ConfigError(f'{key}={shown(section)} needs a name: {", ".join(known)}, or a dotted path')
    arguments = {name: value for name, value in section.items() if name != 'name'}
    return call(key, _look_up(f'{key}.name', section['name'], known), arguments, *given)


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
        raise ConfigError(f'{key}={dotted!r}: {module_name} does not import: {one_line(error)}') from error
    found = getattr(module, attribute, None)
    if not callable(found):
        names = [name for name in vars(module) if callable(getattr(module, name)) and not name.startswith('_')]
        raise ConfigError(f'{key}={dotted!r}: {module_name} has no builder {attribute!r}{nearest(attribute, names)}')
    return found
