"""Who follows Python calls in this process: the interpreter has one place for that a thread, and one for new threads."""

from __future__ import annotations

import sys
import threading
from typing import Any, Optional


def active_tracer() -> Optional[str]:
    """Of whomever, what follows Python calls now: a profiler on this thread, or one that waits for new threads.

    Another that starts meanwhile would take its place, and memray, which can put back Python's functions alone, would
    fail at its end.
    """
    hook = threading.getprofile()
    if getattr(hook, '__name__', '') == 'start_thread_trace':
        return "another of memray's trackers"
    if sys.getprofile() is not None or hook is not None:
        return f'another Python profiler ({_name(sys.getprofile() or hook)})'
    monitoring = getattr(sys, 'monitoring', None)  # Python 3.12
    tool = monitoring.get_tool(monitoring.PROFILER_ID) if monitoring is not None else None
    return f'another Python profiler ({tool})' if tool is not None else None


def _name(hook: Any) -> str:
    owner = getattr(hook, '__self__', hook)
    kind = type(owner)
    return getattr(hook, '__qualname__', kind.__name__) if kind.__name__ in ('function', 'module') else kind.__name__
