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
    used = psutil.Process().memory_info()
    needed = int(_REWRITTEN_SHARE * (used.rss - used.shared))
    free, of_what = psutil.virtual_memory().available, 'on this machine'
    memory = (cgroup or _cgroup).read()
    if memory is not None and memory.limit is not None and memory.limit - memory.usage < free:
        free, of_what = max(memory.limit - memory.usage, 0), f'below the limit of {human_bytes(memory.limit)}'
    if free >= needed:
        return None
    return f'{NO_MEMORY}: {human_bytes(free)} left {of_what}, and writing it may take {human_bytes(needed)}'
