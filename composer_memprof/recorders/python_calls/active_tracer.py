"""Which tool follows Python calls in this process: the interpreter has room for one per thread."""

from __future__ import annotations

import sys
import threading
from typing import Any, Optional


def active_tracer() -> Optional[str]:
    """The profiler that is set for this thread or for new threads, whoever set it; None if there is none.

    A second profiler would replace it. memray would then fail at its end, since it can restore only profile functions
    written in Python.
    """
    hook = threading.getprofile()
    if getattr(hook, '__name__', '') == 'start_thread_trace':
        return 'another memray tracker'
    if sys.getprofile() is not None or hook is not None:
        return f'another Python profiler ({_name_of(sys.getprofile() or hook)})'
    monitoring = getattr(sys, 'monitoring', None)  # since Python 3.12
    tool = monitoring.get_tool(monitoring.PROFILER_ID) if monitoring is not None else None
    return f'another Python profiler ({tool})' if tool is not None else None


def _name_of(hook: Any) -> str:
    owner = getattr(hook, '__self__', hook)
    kind = type(owner)
    return getattr(hook, '__qualname__', kind.__name__) if kind.__name__ in ('function', 'module') else kind.__name__
