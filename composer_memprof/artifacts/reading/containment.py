"""The check that a name stays inside its folder. Needs neither Composer nor torch."""

from __future__ import annotations

from pathlib import Path


def inside(folder: Path, name: str) -> Path:
    """``folder / name``, with every link resolved.

    Raises:
        ValueError: if the resolved path is outside of ``folder``.
    """
    root = folder.resolve()
    path = (root / name).resolve()
    if root != path and root not in path.parents:
        raise ValueError(f'{name!r} is outside of {str(folder)!r}')
    return path
