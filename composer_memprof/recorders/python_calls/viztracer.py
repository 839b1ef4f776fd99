"""Records every Python call with its time, with VizTracer, and writes the trace.

with VizTracerRecorder(ignore_c_function=True) as recorder:
    train_one_batch()
recorder.result.write_json(Path('batch.json'))

A process can have one VizTracer. It uses Python's profile hook; from Python 3.12 on, ``sys.monitoring``. Before 3.12, a
thread that starts during a recording keeps the hook until it ends; the hook does nothing after the recording.
"""

from __future__ import annotations

import builtins
import inspect
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from composer_memprof.messages import must_be
from composer_memprof.recorders.python_calls.optional_import import check_names, import_optional
from composer_memprof.recorders.python_calls.traced_children import TracedChildren

#: Options of VizTracer that the recorder sets itself.
_SET_BY_RECORDER = ('self', 'output_file', 'pid_suffix')
_GLOBAL = '__viz_tracer__'


def tracer_options() -> tuple[str, ...]:
    """The options that are passed through to :class:`viztracer.VizTracer`."""
    names = inspect.signature(import_optional('viztracer').VizTracer.__init__).parameters
    return tuple(name for name in names if name not in _SET_BY_RECORDER)


def check_tracer_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check options for :class:`viztracer.VizTracer`. Returns a copy.

    Raises:
        ValueError: if viztracer is not installed, or for an option that is not allowed.
    """
    check_names(options, tracer_options(), 'viztracer.VizTracer')
    entries = options.get('tracer_entries', 1)
    if not isinstance(entries, int) or isinstance(entries, bool) or entries < 1:
        raise must_be('tracer_entries', 'a whole number above 0', entries)
    if options.get('include_files') is not None and options.get('exclude_files') is not None:
        raise ValueError('include_files and exclude_files both select the files to trace; give one of them')
    for name, value in options.items():
        error = _try_out({name: value} if name != 'tracer_entries' else {})
        if error is not None:
            raise ValueError(f'viztracer.VizTracer does not accept {name}={value!r}: {error}') from error
    return dict(options)


def _try_out(options: Mapping[str, Any]) -> Optional[BaseException]:
    """VizTracer's error for these options, if any.

    Runs on a thread of its own: before Python 3.12, VizTracer's constructor already replaces its thread's profile hook.
    """
    errors: list[BaseException] = []

    def make() -> None:
        try:
            tracer = import_optional('viztracer').VizTracer(
                **{'tracer_entries': 1, 'register_global': False, **options}
            )
            tracer.log_gc = False  # removes it from gc.callbacks
        except BaseException as error:  # VizTracer exits if it cannot import a plugin
            errors.append(error if isinstance(error, Exception) else RuntimeError(f'VizTracer exits ({error!r})'))

    hook = threading.getprofile()
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    threading.setprofile(hook)  # type: ignore[arg-type]  # None removes it
    return errors[0] if errors else None


class CallTrace:
    """A recording in VizTracer's own buffer. Reading it takes time, so let a forked child do that."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def write_json(self, path: Path) -> None:
        """Write Chrome's trace format, for VizTracer, Perfetto and chrome://tracing."""
        named = path.with_name(f'{path.name}.json')  # VizTracer picks the format by the suffix
        self._tracer.save(str(named), verbose=0)
        os.replace(named, path)

    def write_compressed(self, path: Path) -> None:
        """Write VizTracer's own format, much smaller, with calls only. ``viztracer --decompress`` makes it JSON."""
        from viztracer.vcompressor import VCompressor

        self.write_json(path)
        trace = json.loads(path.read_bytes())
        path.unlink()
        VCompressor().compress(trace, str(path))

    def events(self) -> list[dict[str, Any]]:
        """The events in Chrome's trace format, times in microseconds."""
        self._tracer.parse()
        return self._tracer.data['traceEvents']

    def __del__(self) -> None:
        # Before Python 3.12, a deleted tracer removes the profile hook for new threads, even another tool's.
        hook = threading.getprofile()
        self._tracer.clear()
        vars(self._tracer).clear()  # breaks the cycle with its plugins
        self._tracer = None
        threading.setprofile(hook)  # type: ignore[arg-type]


class VizTracerRecorder:
    """Records with :class:`viztracer.VizTracer`, as a context manager or by ``start`` and ``stop``.

    Args:
        children (Path, optional): folder for the traces of processes that are started during the recording. Default:
            ``None``, they are not traced.
        options: of :class:`viztracer.VizTracer`.

    Attributes:
        result (CallTrace): of the last ``with`` block.
        traced_children (bool): after the end, whether a process was started and traced during the recording.
    """

    def __init__(self, children: Optional[Path] = None, **options: Any) -> None:
        self._options = {'verbose': 0, **options}
        self._children = children
        self.traced_children = False
        self._traced_children: Optional[TracedChildren] = None
        self._tracer: Any = None
        self._hook: Any = None
        self._global: Any = None

    def start(self) -> None:
        self._hook, self._global = threading.getprofile(), vars(builtins).get(_GLOBAL)
        self._tracer = import_optional('viztracer').VizTracer(**self._options)
        if self._children is not None:
            self._traced_children = TracedChildren(self._tracer, self._children, self._options)
        if not self._tracer.log_sparse:
            self._tracer.start()

    def mark(self, name: str) -> None:
        """Add a named instant event on this thread."""
        self._tracer.log_instant(name)

    def stop(self) -> CallTrace:
        """End the recording, and restore the hooks."""
        tracer = self._tracer
        assert tracer is not None, 'stop() without start()'
        try:
            tracer.stop(stop_option='flush_as_finish')
            tracer.setpid()  # otherwise a child that writes the trace would put its own pid into it
        finally:
            self._restore_hooks()
        return CallTrace(tracer)

    def cancel(self) -> None:
        """End a recording without a result."""
        if self._tracer is not None:
            self.stop()

    def _restore_hooks(self) -> None:
        tracer, self._tracer = self._tracer, None
        if self._traced_children is not None:
            self.traced_children = self._traced_children.any_started
            self._traced_children.restore()
            self._traced_children = None
        tracer.log_gc = False
        threading.setprofile(self._hook)  # type: ignore[arg-type]
        if vars(builtins).get(_GLOBAL) is tracer:
            if self._global is None:
                del vars(builtins)[_GLOBAL]
            else:
                vars(builtins)[_GLOBAL] = self._global

    def __enter__(self) -> VizTracerRecorder:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.result = self.stop()
