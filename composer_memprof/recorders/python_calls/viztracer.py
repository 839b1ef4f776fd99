"""Every Python call over time, by VizTracer; and what can be written of it.

with VizTracerRecorder(ignore_c_function=True) as recorder:
    train_one_batch()
recorder.result.write_json(Path('batch.json'))

There is one of them a process. It goes by Python's profile hook (from 3.12 on by ``sys.monitoring``). Before 3.12 a
thread that begins while it records has its hook, which does nothing any more, for as long as the thread lives.
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

from composer_memprof.recorders.python_calls.optional_import import check_names, import_optional
from composer_memprof.recorders.python_calls.traced_children import TracedChildren

#: Options of VizTracer that say whereto, which is not the recorder's caller's to say.
_NOT_PASSED = ('self', 'output_file', 'pid_suffix')
_GLOBAL = '__viz_tracer__'


def tracer_options() -> tuple[str, ...]:
    """The options of :class:`viztracer.VizTracer` that are passed through to it."""
    names = inspect.signature(import_optional('viztracer').VizTracer.__init__).parameters
    return tuple(name for name in names if name not in _NOT_PASSED)


def check_tracer_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for :class:`viztracer.VizTracer`.

    Raises:
        ValueError: where viztracer is missing; naming an option that is not allowed, and what is.
    """
    check_names(options, tracer_options(), 'viztracer.VizTracer')
    entries = options.get('tracer_entries', 1)
    if not isinstance(entries, int) or isinstance(entries, bool) or entries < 1:
        raise ValueError(f'tracer_entries={entries!r} is not allowed; it must be a whole number above 0')
    if options.get('include_files') is not None and options.get('exclude_files') is not None:
        raise ValueError('include_files and exclude_files both say which files are traced; give one of them')
    for name, value in options.items():
        error = _try_out({name: value} if name != 'tracer_entries' else {})
        if error is not None:
            raise ValueError(f'{name}={value!r} is not allowed; {error}') from error
    return dict(options)


def _try_out(options: Mapping[str, Any]) -> Optional[BaseException]:
    """What VizTracer says of its options. Before 3.12 one that is only made already takes its thread's profile hook."""
    errors: list[BaseException] = []

    def make() -> None:
        try:
            tracer = import_optional('viztracer').VizTracer(
                **{'tracer_entries': 1, 'register_global': False, **options}
            )
            tracer.log_gc = False  # it is in gc.callbacks
        except BaseException as error:  # a plugin that does not import makes it exit
            errors.append(error if isinstance(error, Exception) else RuntimeError('VizTracer does not take it'))

    hook = threading.getprofile()
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    threading.setprofile(hook)  # type: ignore[arg-type]  # None takes it away
    return errors[0] if errors else None


class CallTrace:
    """What was recorded, in VizTracer's own buffer. Reading it computes; let another process do that."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def write_json(self, path: Path) -> None:
        """Chrome's trace format, which VizTracer, Perfetto and chrome://tracing read."""
        named = path.with_name(f'{path.name}.json')  # VizTracer goes by the name
        self._tracer.save(str(named), verbose=0)
        os.replace(named, path)

    def write_compressed(self, path: Path) -> None:
        """VizTracer's own form, far smaller; ``viztracer --decompress`` makes it JSON again. It has calls alone."""
        from viztracer.vcompressor import VCompressor

        self.write_json(path)
        trace = json.loads(path.read_bytes())
        path.unlink()
        VCompressor().compress(trace, str(path))

    def events(self) -> list[dict[str, Any]]:
        """In Chrome's trace format, times in microseconds."""
        self._tracer.parse()
        return self._tracer.data['traceEvents']

    def __del__(self) -> None:
        # Before 3.12 a tracer that goes takes away what waits for new threads, whosever that is.
        hook = threading.getprofile()
        self._tracer.clear()
        vars(self._tracer).clear()  # its plugins hold it
        self._tracer = None
        threading.setprofile(hook)  # type: ignore[arg-type]


class VizTracerRecorder:
    """Records with :class:`viztracer.VizTracer`; as a context manager, or by ``start`` and ``stop``.

    Args:
        children (Path, optional): where processes that are started meanwhile are to leave traces of their own. Default:
            ``None``, they are not traced.
        options: of :class:`viztracer.VizTracer`.
    """

    def __init__(self, children: Optional[Path] = None, **options: Any) -> None:
        self._options = {'verbose': 0, **options}
        self._children = children
        self._patches: Optional[TracedChildren] = None
        self._tracer: Any = None
        self._hook: Any = None
        self._global: Any = None

    def start(self) -> None:
        self._hook, self._global = threading.getprofile(), vars(builtins).get(_GLOBAL)
        self._tracer = import_optional('viztracer').VizTracer(**self._options)
        if self._children is not None:
            self._patches = TracedChildren(self._tracer, self._children, self._options)
        if not self._tracer.log_sparse:
            self._tracer.start()

    def mark(self, name: str) -> None:
        """A moment with a name, on this thread."""
        self._tracer.log_instant(name)

    def stop(self) -> CallTrace:
        """End the recording, and give the hooks back."""
        tracer = self._tracer
        assert tracer is not None, 'stopped without a start'
        try:
            tracer.stop(stop_option='flush_as_finish')
            tracer.setpid()  # another process reads it, and is not who it tells of
        finally:
            self._let_go()
        return CallTrace(tracer)

    def cancel(self) -> None:
        """End a recording without a result."""
        if self._tracer is not None:
            self.stop()

    def _let_go(self) -> None:
        tracer, self._tracer = self._tracer, None
        if self._patches is not None:
            self._patches.restore()
            self._patches = None
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
