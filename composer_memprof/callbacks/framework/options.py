"""The parameters that every profiling callback takes: their types, defaults and documentation stand once, here.

A callback's ``__init__`` names its own parameters and passes the shared ones on::

    @takes_shared_parameters(filename='rank{rank}.{batch}.host_rss.jsonl')
    class HostRSS(ProfilingCallback):
        def __init__(self, interval: float = 0.5, **shared: Unpack[SharedParameters]) -> None:
            super().__init__(**shared)

The decorator gives ``__init__`` the full signature, fills in the defaults, and completes the class's docstring.
"""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Optional, TypedDict, TypeVar, Union

from composer_memprof.artifacts.naming.addresses import check_no_address, check_scheme
from composer_memprof.artifacts.naming.compression import Compress, check_compress
from composer_memprof.artifacts.naming.names import RUN_VARIABLES, TIME_VARIABLES, Naming, check_template
from composer_memprof.artifacts.uploading.options import check_options
from composer_memprof.messages import check_one_of, check_switches, must_be
from composer_memprof.schedule.base import Schedule, ScheduleInput
from composer_memprof.schedule.parsing import check_units, parse_schedule, parse_stages
from composer_memprof.schedule.ranks import parse_ranks

Ranks = Union[int, Sequence[int], None]
Stages = Union[str, Sequence[str]]
_Callback = TypeVar('_Callback', bound=type)

#: What happens to a window for which there is no room.
ON_FULL = (SKIP, WAIT) = ('skip', 'wait')
#: The line of a class's docstring in whose place the shared parameters are documented.
PLACEHOLDER = '<shared parameters>'

#: In the documentation of ``compress``.
COMPRESS = "``'none'``, ``'gzip'`` or ``'zstd'`` (``True`` is gzip)"


class SharedParameters(TypedDict, total=False):
    """The shared parameters, in their order. What each means stands in :data:`SHARED`."""

    folder: str
    filename: str
    remote_file_name: Optional[str]
    overwrite: bool
    schedule: Optional[ScheduleInput]
    storage_options: Optional[Mapping[str, Any]]
    num_artifacts_to_keep: int
    ranks: Ranks
    stages: Stages
    compress: Compress
    close_timeout: float
    on_full: str
    probe: bool


@dataclass(frozen=True)
class SharedParameter:
    """How one shared parameter is documented, and its default unless a callback has its own."""

    type: str
    meaning: str
    default: Any = None


SHARED: dict[str, SharedParameter] = {
    'folder': SharedParameter('str', 'format string over run variables.', '{run_name}/memprof'),
    'filename': SharedParameter('str', 'format string, relative to ``folder``.'),
    'remote_file_name': SharedParameter(
        'str, optional',
        'format string. With a scheme (``s3://``, …) files go to that store, otherwise to the file destinations of '
        "Composer's logger. Without ``{batch}`` it names a folder, else a prefix. None uploads nothing.",
    ),
    'overwrite': SharedParameter(
        'bool', 'replace files of the same name; otherwise a duplicate name gets ``.2``, ``.3``, …', False
    ),
    'schedule': SharedParameter('Schedule | dict | Callable, optional', 'which batches are recorded.'),
    'storage_options': SharedParameter(
        'dict, optional', "for the store's filesystem, in addition to the environment and fsspec's config."
    ),
    'num_artifacts_to_keep': SharedParameter(
        'int', 'how many windows keep their files on this disk once they are uploaded; -1 keeps all.', -1
    ),
    'ranks': SharedParameter('int | Sequence[int], optional', 'the global ranks that record. None: all.'),
    'stages': SharedParameter('str | Sequence[str]', 'of ``train``, ``eval``, ``predict``.', ('train',)),
    'compress': SharedParameter('str | bool', f'the main file: {COMPRESS}.', False),
    'close_timeout': SharedParameter('float', 'seconds to wait for uploads at the close.', 20.0),
    'on_full': SharedParameter(
        'str',
        'what happens to a window while too many earlier ones are still being written. ``skip``: it is left out, and listed '
        'in the manifest as skipped. ``wait``: the training waits, an hour at most. '
        'The other ranks then wait in their next collective, which may time out sooner.',
        'skip',
    ),
    'probe': SharedParameter(
        'bool', 'ask the store before the first batch, in the background, and warn if uploads will not work.', True
    ),
}


def takes_shared_parameters(
    *, order: Sequence[str] = (), docs: Optional[Mapping[str, str]] = None, **defaults: Any
) -> Callable[[_Callback], _Callback]:
    """Class decorator: the callback's ``__init__`` takes the shared parameters beside its own.

    Args:
        order (Sequence[str]): all parameters in order. Default: the callback's own, then the shared ones.
        docs (Mapping, optional): documentation of a shared parameter that means something special here.
        defaults: of shared parameters, where the callback has its own.
    """

    def decorate(callback: _Callback) -> _Callback:
        own_init = callback.__init__  # type: ignore[misc]
        signature = _full_signature(own_init, defaults, order)

        @functools.wraps(own_init)
        def init(self: Any, *arguments: Any, **keywords: Any) -> None:
            try:
                given = signature.bind(self, *arguments, **keywords)
            except TypeError as error:
                raise TypeError(f'{type(self).__name__}: {error}') from None
            given.apply_defaults()
            values = dict(given.arguments)
            del values['self']
            further = values.pop(variable, {}) if variable is not None else {}
            try:
                own_init(self, **values, **further)
            except ValueError as error:
                raise_with_name(type(self).__name__, error)

        variable = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
        init.__signature__ = signature  # type: ignore[attr-defined]
        callback.__init__ = init  # type: ignore[misc]
        callback.__doc__ = _complete(callback.__doc__ or '', signature, docs or {})
        return callback

    return decorate


def raise_with_name(callback: str, error: ValueError) -> NoReturn:
    """Raise the error with the callback's name before its message: a config may have several callbacks."""
    message = str(error)
    if message.startswith(f'{callback}: '):
        raise error
    raise ValueError(f'{callback}: {message}') from error


def split_shared(arguments: Mapping[str, Any]) -> tuple[SharedParameters, dict[str, Any]]:
    """The shared parameters among ``arguments``, and the others."""
    shared: Any = {name: value for name, value in arguments.items() if name in SHARED}
    return shared, {name: value for name, value in arguments.items() if name not in SHARED}


def default_of(callback: type, parameter: str) -> Any:
    """The default of a callback's parameter."""
    return inspect.signature(callback.__init__).parameters[parameter].default  # type: ignore[misc]


def _full_signature(
    own_init: Callable[..., None], defaults: Mapping[str, Any], order: Sequence[str]
) -> inspect.Signature:
    own = list(inspect.signature(own_init).parameters.values())
    named = {parameter.name: parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD}
    further = [p for p in own if p.kind is p.VAR_KEYWORD and p.name != 'shared']
    annotations = SharedParameters.__annotations__
    for name, parameter in SHARED.items():
        default = defaults.get(name, parameter.default)
        annotation = getattr(annotations[name], '__forward_arg__', annotations[name])
        if default is None and parameter.default is not None:
            annotation = f'Optional[{annotation}]'
        named[name] = inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation
        )
    in_order = [named['self'], *(named[name] for name in order)] if order else list(named.values())
    return inspect.Signature([*in_order, *further], return_annotation=None)


def _complete(docstring: str, signature: inspect.Signature, docs: Mapping[str, str]) -> str:
    """The docstring with every shared parameter in place of the placeholder."""
    lines = []
    for line in docstring.splitlines():
        if line.strip() != PLACEHOLDER:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        for name, parameter in SHARED.items():
            default = signature.parameters[name].default
            meaning = docs.get(name, parameter.meaning)
            if 'Default:' not in meaning:
                meaning = f'{meaning} Default: ``{default!r}``.'
            text = f'{name} ({parameter.type}): {meaning}'
            lines += textwrap.wrap(
                text, 120, initial_indent=indent, subsequent_indent=f'{indent}    ', break_on_hyphens=False
            )
    return '\n'.join(lines)


# -- what the parameters come to --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class When:
    """Which batches of which stages on which ranks are recorded. ``ranks`` None: on all."""

    schedule: Schedule
    ranks: Optional[frozenset[int]]
    stages: frozenset[str]

    def may_run_on(self, rank: int) -> bool:
        """Whether ``rank`` can ever record."""
        return (self.ranks is None or rank in self.ranks) and self.schedule.may_run_on(rank)


def parse_when(shared: SharedParameters, default: Schedule) -> When:
    """Combine the parameters that say when to record; ``schedule`` may contain ranks and stages too.

    Raises:
        ValueError: if one can't be read, or two of them disagree.
    """
    schedule, ranks = shared['schedule'], shared['ranks']
    parsed = parse_schedule(schedule if schedule is not None else default)
    own_ranks = None if ranks is None else parse_ranks(ranks, 'ranks')
    own_stages = parse_stages(shared['stages'], 'stages')
    if own_ranks is not None and parsed.ranks is not None and own_ranks != parsed.ranks:
        raise ValueError(
            f'ranks={sorted(own_ranks)} and schedule.ranks={sorted(parsed.ranks)} differ; give one of them'
        )
    if parsed.stages is not None and own_stages not in (parsed.stages, {'train'}):
        raise ValueError(
            f'stages={sorted(own_stages)} and schedule.stages={sorted(parsed.stages)} differ; give one of them'
        )
    when = When(parsed.schedule, own_ranks or parsed.ranks, parsed.stages or own_stages)
    check_units(when.schedule, when.stages)
    return when


@dataclass(frozen=True)
class Output:
    """Where a callback's files go, as the user gave it; checked on construction.

    Raises:
        ValueError: naming the parameter, its value and what is allowed.
    """

    folder: str
    naming: Naming
    storage_options: Optional[Mapping[str, Any]]
    overwrite: bool
    num_artifacts_to_keep: int
    compress: Compress
    close_timeout: float
    on_full: str
    probe: bool

    def __post_init__(self) -> None:
        check_switches(overwrite=self.overwrite, probe=self.probe)
        check_compress(self.compress)
        check_no_address(self.folder, 'folder')
        check_template(self.folder, 'folder', RUN_VARIABLES)
        check_naming(self.naming)
        check_kept('num_artifacts_to_keep', self.num_artifacts_to_keep, self.naming.remote)
        if not isinstance(self.close_timeout, (int, float)) or not 0 <= self.close_timeout < 86400:
            raise must_be('close_timeout', '0 to 86400 seconds', self.close_timeout)
        check_one_of('on_full', self.on_full, ON_FULL)
        check_options(self.storage_options, self.naming.remote)


def check_kept(name: str, keep: object, remote: Optional[str]) -> None:
    """Refuse a number of windows to keep that is none, or that would keep nothing here and nothing in a store.

    Raises:
        ValueError: naming the parameter as ``name``.
    """
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < -1:
        raise must_be(name, '-1 (keep all) or a whole number from 0', keep)
    if keep == 0 and remote is None:
        raise ValueError(f'{name}=0 with remote_file_name=None would keep nothing anywhere')


def parse_output(shared: SharedParameters, suffix: str) -> Output:
    """The parameters that say where files go, checked.

    Args:
        shared (SharedParameters): all of them.
        suffix (str): of a window's main file.
    """
    return Output(
        folder=shared['folder'],
        naming=Naming(shared['filename'], shared['remote_file_name'], suffix),
        storage_options=shared['storage_options'],
        overwrite=shared['overwrite'],
        num_artifacts_to_keep=shared['num_artifacts_to_keep'],
        compress=shared['compress'],
        close_timeout=shared['close_timeout'],
        on_full=shared['on_full'],
        probe=shared['probe'],
    )


def check_naming(naming: Naming, prefix: str = '') -> None:
    """Refuse names that can't be formed, or stores that can't be reached.

    Raises:
        ValueError: naming the parameter (with ``prefix``), its value and what is allowed.
    """
    every_variable = RUN_VARIABLES + TIME_VARIABLES
    check_template(naming.filename, f'{prefix}filename', every_variable)
    if os.path.isabs(naming.filename) or '..' in Path(naming.filename).parts:
        raise ValueError(f'{prefix}filename={naming.filename!r} leaves its folder; it must be relative, without ..')
    if naming.remote is not None:
        remote = str(naming.remote)  # not yet known to be text, but whatever it is may have a credential
        check_scheme(remote, f'{prefix}remote_file_name')
        check_template(naming.remote, f'{prefix}remote_file_name', every_variable)
