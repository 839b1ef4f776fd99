"""Memory and limit of this process's cgroup, version 1 or 2. A job above the limit is killed. Sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

#: cgroup v1 writes "no limit" as a number of about this size.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class CgroupMemory:
    """Memory of a cgroup.

    Args:
        usage (int): without the inactive file cache, which the kernel frees before it kills.
        limit (int, optional): the lowest limit of the cgroup and those above it. None: no limit.
    """

    usage: int
    limit: Optional[int]


class Cgroup:
    """The memory cgroup of this process, version 1 or 2.

    Args:
        root (Path): mount point of the cgroups.
        membership (Path): file that lists the cgroups of this process.
    """

    def __init__(self, root: Path = Path('/sys/fs/cgroup'), membership: Path = Path('/proc/self/cgroup')) -> None:
        self._usage_name, self._limit_name, self._cache_name = 'memory.current', 'memory.max', 'inactive_file'
        self._levels: list[Path] = []
        found = self._find(root, membership)
        if found is not None:
            top, own = found
            # The limit of every level applies.
            self._levels = [level for level in (own, *own.parents) if level == top or top in level.parents]

    def _find(self, root: Path, membership: Path) -> Optional[tuple[Path, Path]]:
        """The folder of the hierarchy, and that of our own cgroup (the same in a container that shows only that)."""
        try:
            lines = membership.read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            _, _, rest = line.partition(':')
            controllers, _, path = rest.partition(':')
            if 'memory' in controllers.split(','):
                top = root / 'memory'
                self._usage_name, self._limit_name = 'memory.usage_in_bytes', 'memory.limit_in_bytes'
                self._cache_name = 'total_inactive_file'
            elif not controllers and (root / 'cgroup.controllers').exists():
                top = root
            else:
                continue
            for folder in (top / path.strip().lstrip('/'), top):
                if '..' not in folder.parts and (folder / self._usage_name).exists():
                    return top, folder
        return None

    def read(self) -> Optional[CgroupMemory]:
        """None if this process is in no memory cgroup."""
        if not self._levels:
            return None
        own = self._levels[0]
        try:
            usage = int((own / self._usage_name).read_text())
            for line in (own / 'memory.stat').read_text().splitlines():
                name, _, value = line.partition(' ')
                if name == self._cache_name:
                    usage = max(usage - int(value), 0)
        except (OSError, ValueError):
            return None
        limits = [limit for level in self._levels if (limit := self._limit(level)) is not None]
        return CgroupMemory(usage, min(limits, default=None))

    def _limit(self, level: Path) -> Optional[int]:
        try:
            limit = int((level / self._limit_name).read_text())
        except (OSError, ValueError):  # 'max': no limit
            return None
        return limit if limit < _NO_LIMIT else None
