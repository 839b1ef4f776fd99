"""Names of files on this disk and in the destination, from format strings.

The variables are Composer's own. A name never leaves its folder, whatever the run is called.
"""

from __future__ import annotations

import os
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Optional

from composer.core import Timestamp
from composer.utils import dist

from composer_memprof.artifacts.naming.compression import suffixes
from composer_memprof.artifacts.naming.numbering import before_suffix, counted
from composer_memprof.messages import allowed_are, must_be

RUN_VARIABLES = ('run_name', 'rank', 'local_rank', 'world_size', 'local_world_size', 'node_rank')
TIME_VARIABLES = (
    *('epoch', 'batch', 'batch_in_epoch', 'sample', 'sample_in_epoch', 'token', 'token_in_epoch'),
    *('total_wct', 'epoch_wct', 'batch_wct'),
)

#: A value for each variable, for trying a format string.
_SAMPLES: dict[str, object] = {
    **dict.fromkeys((*RUN_VARIABLES, *TIME_VARIABLES), 0),
    **dict.fromkeys(('total_wct', 'epoch_wct', 'batch_wct'), 0.5),
    'run_name': 'name',
}


def check_template(template: object, parameter: str, allowed: Sequence[str]) -> str:
    """Return ``template`` as text if it is a format string over the ``allowed`` variables.

    Raises:
        ValueError: if not, naming the parameter, the variable and what is allowed.
    """
    if not isinstance(template, (str, os.PathLike)) or not os.fspath(template):
        raise must_be(parameter, 'a format string (in YAML, in quotes)', template)
    text = str(os.fspath(template))
    try:
        fields = [(field, spec or '') for _, field, spec, _ in string.Formatter().parse(text) if field is not None]
    except ValueError as error:
        raise ValueError(f'{parameter}={text!r} is not a valid format string: {error}') from error
    for field, spec in fields:
        if field not in allowed or '{' in spec:
            raise ValueError(f'{parameter}={text!r}: {{{field}}} is unknown; {allowed_are(allowed, field)}')
    try:
        text.format(**_SAMPLES)
    except (ValueError, KeyError, IndexError) as error:
        raise ValueError(f'{parameter}={text!r} cannot be formatted: {error}') from error
    return text


def has_variable(template: str, variable: str) -> bool:
    return any(field == variable for _, field, _, _ in string.Formatter().parse(template))


def check_run_name(run_name: str, *templates: Optional[str]) -> None:
    """Refuse a run name that would lead out of the folder that it names.

    Raises:
        ValueError: if a template uses ``run_name`` and it is absolute, contains ``..``, or is not printable.
    """
    if not any(template is not None and has_variable(template, 'run_name') for template in templates):
        return
    parts = run_name.replace('\\', '/').split('/')
    if '..' in parts or run_name.startswith(('/', '\\', '~')) or not run_name.isprintable() or not run_name:
        raise ValueError(
            f'run_name={run_name!r} cannot name a folder of the run; use one without .., a leading / or ~, '
            'or control characters'
        )


@dataclass(frozen=True)
class Stamp:
    """The run, batch and rank that a file belongs to.

    Args:
        run_name (str): of the run.
        timestamp (Timestamp): Composer's.
        mark (str): an addition to the name of a file from outside of training: ``.eval12``.
        rank (int, optional): the rank of another process; None for this process.
    """

    run_name: str
    timestamp: Timestamp
    mark: str = ''
    rank: Optional[int] = None


@dataclass(frozen=True)
class Naming:
    """The format strings of a window's file names.

    Args:
        filename (str): relative to the folder.
        remote (str, optional): without ``{batch}`` a folder in the destination, otherwise a prefix to which each
            file's suffix is appended. None uploads nothing.
        suffix (str): of the window's main file. Each further file has its own suffix in its place.
    """

    filename: str
    remote: Optional[str]
    suffix: str

    def local(self, stamp: Stamp, suffix: str, number: int) -> str:
        """The name relative to the folder, with ``.{number}`` before the suffix from 2 on.

        Raises:
            ValueError: if the name would leave the folder.
        """
        name = before_suffix(self._stem(self.filename, stamp) + suffix, stamp.mark + counted(number))
        if PurePosixPath(name).is_absolute() or '..' in PurePosixPath(name).parts or '\0' in name:
            raise ValueError(f'filename={self.filename!r} gives {name!r}, which leaves its folder')
        return name

    def in_store(self, stamp: Stamp, suffix: str, number: int, local: str) -> Optional[str]:
        """The name in the destination of the file with the local name ``local``; None if nothing is uploaded."""
        if self.remote is None:
            return None
        if not has_variable(self.remote, 'batch'):
            scheme, separator, path = _format(self.remote, stamp).rpartition('://')
            return f'{scheme}{separator}{path.rstrip("/")}/{local}'
        return before_suffix(self._stem(self.remote, stamp) + suffix, stamp.mark + counted(number))

    def _stem(self, template: str, stamp: Stamp) -> str:
        for ending in (*(self.suffix + suffix for suffix in suffixes()), self.suffix):
            if ending and template.endswith(ending):
                return _format(template[: -len(ending)], stamp)
        return _format(template, stamp)


def _format(template: str, stamp: Stamp) -> str:
    now = stamp.timestamp
    return template.format(
        **_run_variables(stamp.run_name, stamp.rank),
        epoch=int(now.epoch),
        batch=int(now.batch),
        batch_in_epoch=int(now.batch_in_epoch),
        sample=int(now.sample),
        sample_in_epoch=int(now.sample_in_epoch),
        token=int(now.token),
        token_in_epoch=int(now.token_in_epoch),
        total_wct=now.total_wct.total_seconds(),
        epoch_wct=now.epoch_wct.total_seconds(),
        batch_wct=now.batch_wct.total_seconds(),
    )


def _run_variables(run_name: str, rank: Optional[int]) -> dict[str, object]:
    """The values for this process, or for another ``rank``, on the assumption that all nodes have equally many ranks."""
    local_world_size = dist.get_local_world_size()
    own = dist.get_global_rank()
    number = own if rank is None else rank
    return {
        'run_name': run_name,
        'rank': number,
        'local_rank': dist.get_local_rank() if number == own else number % local_world_size,
        'world_size': dist.get_world_size(),
        'local_world_size': local_world_size,
        'node_rank': _own_node_rank() if number == own else number // local_world_size,
    }


def _own_node_rank() -> int:
    """The node rank that Composer gives. torchrun sets GROUP_RANK in place of NODE_RANK."""
    group_rank = os.environ.get('GROUP_RANK')
    return dist.get_node_rank() if 'NODE_RANK' in os.environ or group_rank is None else int(group_rank)


def folder_of(template: str, run_name: str, rank: Optional[int] = None) -> Path:
    """The run's folder, from a template over run variables; ``~`` is the home folder.

    Raises:
        ValueError: if the home folder is not known.
    """
    try:
        return Path(template.format(**_run_variables(run_name, rank))).expanduser()
    except RuntimeError as error:
        raise ValueError(f'folder={template!r}: {error}') from error
