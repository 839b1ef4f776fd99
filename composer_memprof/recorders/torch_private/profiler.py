"""torch's profiler: whether a session runs, and the events that a finished one keeps alive."""

from __future__ import annotations

from typing import Any

from composer_memprof.recorders.torch_private import private

#: ``()``: True if a session of torch's profiler, anyone's, runs in this process.
is_profiling = private('torch.autograd._profiler_enabled', module=__name__)


def break_reference_cycle(profile: Any) -> None:
    """Let a finished session's events, hundreds of MB, be freed with their last reader, not by the garbage collector.

    The schedule's actions are bound methods of the session, which nothing calls any more.
    """
    getattr(profile, 'action_map', {}).clear()
