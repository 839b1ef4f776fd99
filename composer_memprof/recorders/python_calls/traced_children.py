"""Lets VizTracer trace the Python processes that are started while it records, by subprocess or multiprocessing.

VizTracer's own way to set this up cannot be undone, since it adds audit hooks and fork handlers. Its two patches can.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

#: Options of VizTracer that are also on its command line, so a new process can be given them.
_SWITCHES = (
    *('ignore_c_function', 'ignore_frozen', 'log_func_retval', 'log_func_args', 'log_print', 'log_gc', 'log_async'),
    *('log_sparse', 'trace_self'),
)
_VALUES = ('tracer_entries', 'max_stack_depth', 'min_duration')
#: Each process writes its trace to ``processes_{pid}.json``.
TRACE_NAME = 'processes'


class TracedChildren:
    """Processes started until :meth:`restore` write a trace each into ``folder`` as they end.

    Args:
        tracer (viztracer.VizTracer): of this process; forked children continue with it.
        folder (Path): created if missing.
        options (Mapping): of ``tracer``, for processes that start a new interpreter.
    """

    def __init__(self, tracer: Any, folder: Path, options: Mapping[str, Any]) -> None:
        from viztracer.patch import patch_multiprocessing, patch_subprocess

        folder.mkdir(parents=True, exist_ok=True)
        tracer.output_file, tracer.pid_suffix = str(folder / f'{TRACE_NAME}.json'), True
        arguments = _command_line(options)
        self._tracer = tracer
        self._popen_init = subprocess.Popen.__init__
        self._spawn = multiprocessing.util.spawnv_passfds
        patch_multiprocessing(tracer, [*arguments])
        patch_subprocess([*arguments, '--subprocess_child', '--dump_raw', '-o', tracer.output_file])
        self._folder = folder
        self._running_before = _running()
        self._count_subprocesses()

    def _count_subprocesses(self) -> None:
        self._subprocesses = 0
        start = subprocess.Popen.__init__

        def counted(*arguments: Any, **keywords: Any) -> None:
            self._subprocesses += 1
            start(*arguments, **keywords)

        subprocess.Popen.__init__ = counted  # type: ignore[method-assign, assignment]

    @property
    def any_started(self) -> bool:
        """Whether a process was started since. One that has ended already has left its trace."""
        started = self._subprocesses > 0 or bool(_running() - self._running_before)
        return started or any(self._folder.iterdir())

    def restore(self) -> None:
        """Remove the patches."""
        subprocess.Popen.__init__ = self._popen_init  # type: ignore[method-assign]
        if '__originit__' in vars(subprocess.Popen):
            del subprocess.Popen.__originit__  # type: ignore[attr-defined]
        multiprocessing.util.spawnv_passfds = self._spawn
        # multiprocessing has no public way to remove a handler.
        registry = multiprocessing.util._afterfork_registry  # type: ignore[attr-defined]
        for key in [key for key, registered in list(registry.items()) if registered is self._tracer]:
            del registry[key]
        self._tracer.pid_suffix = False


def _running() -> set[Optional[int]]:
    return {process.pid for process in multiprocessing.active_children()}


def _command_line(options: Mapping[str, Any]) -> list[str]:
    arguments = [f'--{name}' for name in _SWITCHES if options.get(name)]
    for name in _VALUES:
        if options.get(name) is not None:
            arguments += [f'--{name}', str(options[name])]
    return arguments
