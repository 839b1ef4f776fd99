"""Reads a YAML config with its ``key=value`` overrides."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from composer import Trainer
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from composer_memprof.config.arguments import ConfigError, check_names, one_line, shown
from composer_memprof.config.registries import ALGORITHMS, ALL_CALLBACKS, LOGGERS
from composer_memprof.examples.configs import shipped_configs
from composer_memprof.messages import allowed_are
from composer_memprof.schedule.spans import parse_span

#: Keys of a config that are built here.
BUILT = (
    *('model', 'train_loader', 'eval_loader', 'optimizer', 'scheduler'),
    *('callbacks', 'loggers', 'algorithms', 'profiler'),
)
#: The Trainer's parameters that have another key here, or none.
_NOT_PASSED = ('self', 'train_dataloader', 'eval_dataloader', 'optimizers', 'schedulers', 'algorithm_passes')
#: Sections of a config that map names to arguments.
_SECTIONS: dict[str, Collection[str]] = {'callbacks': ALL_CALLBACKS, 'loggers': LOGGERS, 'algorithms': ALGORITHMS}


def load(config: Union[str, os.PathLike[str]], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a YAML config, with ``key=value`` overrides (dotted keys) on top.

    As in LLM Foundry, a callback without arguments (``lr_monitor:``) takes its defaults; the override
    ``callbacks.lr_monitor=null`` takes it out of the config.

    Args:
        config (str | PathLike): a file, or the name of a config that ships with the package.
        overrides (Sequence[str]): such as ``max_duration=20ba``.

    Raises:
        ConfigError: if it can't be read, or has a key that nothing takes.
    """
    for override in overrides:
        if '=' not in override or override.startswith('='):
            raise ConfigError(f'{override!r} must be key=value, such as max_duration=20ba')
    path = find_config(config)
    try:
        with path.open(encoding='utf-8') as file:
            base = OmegaConf.load(file)
        changes = OmegaConf.from_dotlist(list(overrides))
        # One after the other: callbacks=null followed by callbacks.X.… leaves X alone.
        merged = OmegaConf.merge(base, *(OmegaConf.from_dotlist([override]) for override in overrides))
        values: Any = OmegaConf.to_container(merged, resolve=True)
    except (OSError, YAMLError, OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(f'{config} cannot be read: {one_line(error)}') from error
    if not isinstance(values, dict):
        raise ConfigError(f'{config} must hold keys and values, not a {type(values).__name__}')
    loaded = {str(key): value for key, value in values.items()}
    _take_out(loaded, OmegaConf.to_container(changes))
    _check(loaded)
    if loaded.get('run_name') is not None:
        loaded['run_name'] = _text(loaded['run_name'], overrides)
    return loaded


def find_config(config: Union[str, os.PathLike[str]]) -> Path:
    """The file at a path, or else the shipped config of that name.

    Raises:
        ConfigError: if there is neither.
    """
    path, shipped = Path(os.path.expanduser(config)), shipped_configs()
    if path.exists() and not path.is_dir():
        return path
    if str(config) in shipped:
        return shipped[str(config)]
    names = allowed_are(list(shipped), path.stem)
    raise ConfigError(f'{str(config)!r} is not a file, and not the name of a shipped config; {names}')


def _take_out(config: dict[str, Any], changes: Any) -> None:
    """Remove what an override sets to null from the sections that map names to arguments."""
    for key, known in _SECTIONS.items():
        section, changed = config.get(key), changes.get(key)
        if not isinstance(section, dict) or not isinstance(changed, dict):
            continue
        removed = [name for name, value in changed.items() if value is None]
        check_names(key, {name: None for name in removed if '.' not in str(name)}, list(known))
        config[key] = {name: arguments for name, arguments in section.items() if name not in removed}


def _check(config: Mapping[str, Any]) -> None:
    passed = [name for name in inspect.signature(Trainer).parameters if name not in (*BUILT, *_NOT_PASSED)]
    check_names('', config, (*BUILT, *passed))
    for key in ('model', 'train_loader', 'max_duration'):
        if config.get(key) is None:
            raise ConfigError(f'{key} is missing; a config needs model, train_loader and max_duration')
    try:
        parse_span(config['max_duration'], 'max_duration')
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _text(run_name: Any, overrides: Sequence[str]) -> str:
    """A run name such as 20261121, which YAML reads as a number, as text."""
    if isinstance(run_name, str):
        return run_name
    if isinstance(run_name, bool) or not isinstance(run_name, (int, float)):
        raise ConfigError(f'run_name must be text (in YAML, in quotes), not {shown(run_name)}')
    typed = [override.partition('=')[2] for override in overrides if override.startswith('run_name=')]
    return typed[-1] if typed and '${' not in typed[-1] else str(run_name)
