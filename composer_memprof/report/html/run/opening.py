"""How to open each kind of artifact."""

from __future__ import annotations

import shlex

#: By kind, or its first part. Pages open in a browser, and text in any editor, so they are not here.
_COMMANDS = {
    'memory_snapshot': 'composer-memprof inspect {}',
    'mem_profiler': 'composer-memprof inspect {}',
    'torch_profiler': 'drop it on https://ui.perfetto.dev',
    'viztracer': 'vizviewer {}',
    'memray': 'python -m memray flamegraph {}',
}


def how_to_open(kind: str, name: str) -> str:
    """The command, or what to do; ``''`` for a file that a browser or an editor shows.

    >>> how_to_open('memray', 'rank0.bin')
    'python -m memray flamegraph rank0.bin'
    """
    return _COMMANDS.get(kind, '').format(shlex.quote(name))
