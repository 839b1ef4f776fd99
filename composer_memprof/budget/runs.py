"""A run that a budget names: what is run where, and what it may come to. Every setting is checked before anything runs."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Optional

from composer_memprof.budget.measures import MEASURES, Limit, limit_of
from composer_memprof.examples.configs import shipped_configs
from composer_memprof.messages import allowed_are, check_count, check_switches, must_be
from composer_memprof.simulated_gpu import ranks as simulated_ranks
from composer_memprof.simulated_gpu.devices import Device, device_by_hand, find_device, with_memory
from composer_memprof.simulation.guesses import kept_parts
from composer_memprof.simulation.run import python_of

#: The keys that together say which GPU.
OF_DEVICES = ('gpu', 'memory', 'compute_capability')
_DEFAULT_GPU, _DEFAULT_CAPABILITY = 'h100-80gb', '9.0'


@dataclass(frozen=True)
class Run:
    """A run of a budget. Its settings are those of ``plan`` and ``simulate``.

    Args:
        name (str): in the budget.
        config (str): a file, or the name of a config that ships; ``''`` for a command.
        overrides (tuple[str, ...]): of the config.
        command (tuple[str, ...]): its words; empty for a config.
        allowed (dict[str, Limit]): by measure.
    """

    name: str
    config: str = ''
    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    gpu: Optional[str] = None
    memory: Optional[str] = None
    compute_capability: Optional[str] = None
    ranks: Optional[int] = None
    ranks_per_node: Optional[int] = None
    rank: int = 0
    steps: int = 3
    eval: bool = False
    devices: Optional[int] = None
    kept: tuple[str, ...] = ('1',)
    values: bool = True
    time_limit: float = 0
    allowed: dict[str, Limit] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """The simulated GPU.

        Raises:
            ValueError: if there is none.
        """
        if self.gpu is None and self.memory is not None:
            return device_by_hand(self.memory, self.compute_capability or _DEFAULT_CAPABILITY)
        named = find_device(self.gpu or _DEFAULT_GPU)
        return named if self.memory is None else with_memory(named, self.memory)

    def setup(self) -> dict[str, str]:
        """What its figures depend on, as text, without what has its default."""
        found = {'gpu': self.device.key}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in _KEYS and each.name not in OF_DEVICES and value != each.default:
                found[each.name] = as_text(value)
        return found


def as_text(value: object) -> str:
    """A setting's value as a budget shows it.

    >>> as_text(('python', 'my train.py')), as_text(8)
    ("python 'my train.py'", '8')
    """
    return shlex.join(value) if isinstance(value, tuple) else str(value)


def run_of(name: str, settings: Mapping[str, Any], where: str = '') -> Run:
    """The run of these settings, by the budget's keys.

    Args:
        where (str): begins each message, such as ``memory_budget.yaml: runs.train``.

    Raises:
        ValueError: one line with the key, its value, and what is allowed.
    """
    begin = f'{where}.' if where else ''
    for key in settings:
        if key not in (*_KEYS, 'allowed'):
            raise ValueError(f'{begin}{key} is unknown; {allowed_are([*_KEYS, "allowed"], key)}')
    checked = {key: _KEYS[key](f'{begin}{key}', value) for key, value in settings.items() if key != 'allowed'}
    _check_it_is_there(begin, checked)
    what = where or 'a run'
    if ('config' in checked) == ('command' in checked):
        raise ValueError(f'{what} must have one of config and command')
    wrong = [key for key in (_OF_COMMANDS if 'config' in checked else ('overrides',)) if key in checked]
    if wrong:
        raise ValueError(f'{begin}{wrong[0]} is for a {"command" if "config" in checked else "config"} only')
    run = Run(name, **checked, allowed=_allowed(f'{begin}allowed', settings.get('allowed', {})))
    try:
        run.device  # noqa: B018 (raises)
        simulated_ranks.environment(run.ranks or 1, run.rank, run.ranks_per_node)
        kept_parts(run.kept, run.values)
    except ValueError as error:
        raise ValueError(f'{where}: {error}' if where else str(error)) from None
    return run


def _check_it_is_there(begin: str, checked: Mapping[str, Any]) -> None:
    config, command = checked.get('config'), checked.get('command')
    if config is not None and config not in shipped_configs() and not Path(config).expanduser().is_file():
        raise ValueError(f'{begin}config={config!r} is not a file; {allowed_are([*shipped_configs()], config)}')
    if command is not None and shutil.which(python_of(command)[0]) is None:
        raise ValueError(f'{begin}command: there is no program {command[0]!r}')


def _allowed(name: str, value: object) -> dict[str, Limit]:
    if not isinstance(value, Mapping):
        raise must_be(name, 'a mapping such as {allocated: 1 %, reserved: 30 GiB}', value)
    measures = {measure.key: measure for measure in MEASURES}
    for key in value:
        if key not in measures:
            raise ValueError(f'{name}.{key} is unknown; {allowed_are(list(measures), key)}')
    usual = value or {measure.key: measure.usual for measure in MEASURES if measure.of_memory}
    return {key: limit_of(measures[key], f'{name}.{key}', text) for key, text in usual.items()}


def usual_name(config: str, command: tuple[str, ...]) -> str:
    """The name of a run that was given none: of its config, script or program.

    >>> usual_name('', ('python', 'src/train.py', '--lr', '1')), usual_name('yamls/fsdp2.yaml', ())
    ('train', 'fsdp2')
    """
    scripts = [word for word in command if word.endswith('.py')]
    return Path(config or (scripts or list(command))[0]).stem


# -- how each setting is checked ------------------------------------------------------------------------------------


def _text(name: str, value: object) -> str:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool) or not str(value).strip():
        raise must_be(name, 'text', value)
    return str(value)


def _words(name: str, value: object) -> tuple[str, ...]:
    words = [value] if isinstance(value, (str, int, float)) else value
    if not isinstance(words, list) or not all(isinstance(word, (str, int, float)) for word in words):
        raise must_be(name, 'text, or a list of texts', value)
    return tuple(map(str, words))


def _command(name: str, value: object) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(value)) if isinstance(value, str) else _words(name, value)
    except ValueError as error:
        raise ValueError(f'{name}={value!r} cannot be split into words: {error}') from None
    if not words:
        raise must_be(name, 'a command, such as python train.py', value)
    return words


def _count(name: str, value: Any) -> int:
    check_count(name, value)
    return int(value)


def _from_zero(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise must_be(name, 'a whole number from 0', value)
    return value


def _seconds(name: str, value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise must_be(name, 'seconds from 0', value)
    return float(value)


def _switch(name: str, value: Any) -> bool:
    check_switches(**{name: value})
    return bool(value)


_OF_COMMANDS = ('rank', 'steps', 'eval', 'devices', 'kept', 'values', 'time_limit')
#: The keys of a run in a budget, and how each value is checked.
_KEYS: dict[str, Callable[[str, Any], Any]] = {
    'config': _text,
    'overrides': _words,
    'command': _command,
    'gpu': _text,
    'memory': _text,
    'compute_capability': _text,
    'ranks': _count,
    'ranks_per_node': _count,
    'rank': _from_zero,
    'steps': _from_zero,
    'eval': _switch,
    'devices': _count,
    'kept': _words,
    'values': _switch,
    'time_limit': _seconds,
}
