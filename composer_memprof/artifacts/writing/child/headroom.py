"""Whether there is memory for a forked child.

The child shares the training's memory until one of them writes to it: what the training rewrites while the child lives
takes room twice.
"""

from __future__ import annotations

from typing import Optional

import psutil

from composer_memprof.cgroup import Cgroup
from composer_memprof.messages import human_bytes

#: How much of its own memory the training is expected to rewrite while a child lives.
_REWRITTEN_SHARE = 0.2
#: The beginning of the reason.
NO_MEMORY = 'memory is short'

_cgroup = Cgroup()


def why_no_memory(cgroup: Optional[Cgroup] = None) -> Optional[str]:
    """Why no child should be forked now, or None.

    Args:
        cgroup (Cgroup, optional): whose limit applies. Default: that of this process.
    """
    try:
        used, free = psutil.Process().memory_info(), psutil.virtual_memory().available
    except (psutil.Error, OSError):  # it can't be read, as without a free descriptor
        return None
    needed, of_what = int(_REWRITTEN_SHARE * (used.rss - getattr(used, 'shared', 0))), 'on this machine'
    memory = (cgroup or _cgroup).read()
    if memory is not None and memory.limit is not None and memory.limit - memory.usage < free:
        free, of_what = max(memory.limit - memory.usage, 0), f'below the limit of {human_bytes(memory.limit)}'
    if free >= needed:
        return None
    return f'{NO_MEMORY}: {human_bytes(free)} left {of_what}, and writing it may take {human_bytes(needed)}'
