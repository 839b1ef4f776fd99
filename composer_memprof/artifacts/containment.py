"""The check that a name stays inside its folder. Needs neither Composer nor torch."""

from __future__ import annotations

from pathlib import Path


def inside(folder: Path, name: str) -> Path:
    """``folder / name``, with every link followed.

    Raises:
        ValueError: if that is not ``folder`` or inside it.
    """
    home = folder.resolve()
    path = (home / name).resolve()
    if home != path and home not in path.parents:
        raise ValueError(f'{name!r} leads out of {str(folder)!r}')
    return path
