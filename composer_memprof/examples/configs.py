"""The YAML configs that ship with the package, by name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def shipped_configs() -> dict[str, Path]:
    """Name to file, such as ``quickstart`` to ``…/yamls/quickstart.yaml``."""
    folder = Path(str(resources.files('composer_memprof').joinpath('yamls')))
    return {file.stem: file for file in sorted(folder.glob('*.yaml'))}
