"""Has VizTracer trace the Python processes that are started while it records: by subprocess and by multiprocessing.

VizTracer's own way to install this can't be taken back (audit hooks, fork handlers); its two patches can.
"""

from __future__ import annotations

import multiprocessing.util
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Options of VizTracer that its command line has, and a process that is started can so be given.
_SWITCHES = (
    *('ignore_c_function', 'ignore_frozen', 'log_func_retval', 'log_func_args', 'log_print', 'log_gc', 'log_async'),
    *('log_sparse', 'trace_self'),
)
_VALUES = ('tracer_entries', 'max_stack_depth', 'min_duration')
#: The trace of each process is ``processes_{pid}.json``.
NAME = 'processes'


class TracedChildren:
    """From here on, until ``restore``, processes of the user leave a trace each in ``folder``, as they end.

    Args:
        tracer (viztracer.VizTracer): of this process; forked ones go on with it.
        folder (Path): made, if need be.
        options (Mapping): of ``tracer``, for those that are started anew.
    """

    def __init__(self, tracer: Any, folder: Path, options: Mapping[str, Any]) -> None:
        from viztracer.patch import patch_multiprocessing, patch_subprocess

        folder.mkdir(parents=True, exist_ok=True)
        tracer.output_file, tracer.pid_suffix = str(folder / f'{NAME}.json'), True
        arguments = _command_line(options)
        self._tracer = tracer
        self._start = subprocess.Popen.__init__
        self._spawn = multiprocessing.util.spawnv_passfds
        patch_multiprocessing(tracer, [*arguments])
        patch_subprocess([*arguments, '--subprocess_child', '--dump_raw', '-o', tracer.output_file])

    def restore(self) -> None:
        subprocess.Popen.__init__ = self._start  # type: ignore[method-assign]
        if '__originit__' in vars(subprocess.Popen):
            del subprocess.Popen.__originit__  # type: ignore[attr-defined]
        multiprocessing.util.spawnv_passfds = self._spawn
        registry = multiprocessing.util._afterfork_registry  # type: ignore[attr-defined]  # there is no way to leave it
        for key in [key for key, registered in list(registry.items()) if registered is self._tracer]:
            del registry[key]
        self._tracer.pid_suffix = False


def _command_line(options: Mapping[str, Any]) -> list[str]:
    arguments = [f'--{name}' for name in _SWITCHES if options.get(name)]
    for name in _VALUES:
        if options.get(name) is not None:
            arguments += [f'--{name}', str(options[name])]
    return arguments
