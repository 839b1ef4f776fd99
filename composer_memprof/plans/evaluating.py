"""An evaluation and a checkpoint after each batch of a trial, as ``plan --eval`` asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

#: Batches of each evaluation, unless the config has fewer: the second one may find what the first one left.
_BATCHES = 2
#: Config keys of where and how checkpoints are written, which a trial decides by itself.
_WRITING = ('save_folder', 'save_interval', 'save_num_checkpoints_to_keep', 'save_latest_filename', 'run_name')


def evaluating(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The config with an evaluation, if it has an ``eval_loader``, and a checkpoint after each batch.

    Args:
        folder: for the checkpoints, which :func:`save_nothing` leaves empty.
    """
    kept = {key: value for key, value in config.items() if key not in _WRITING}
    most = config.get('eval_subset_num_batches', -1)
    batches = min(most, _BATCHES) if isinstance(most, int) and most > 0 else _BATCHES
    evaluation = {'eval_interval': '1ba', 'eval_subset_num_batches': batches} if config.get('eval_loader') else {}
    return {**kept, **evaluation, 'save_folder': str(folder), 'save_interval': '1ba', 'save_latest_filename': None}


def save_nothing() -> None:
    """Let ``torch.save`` write empty files in this process, for good. What it does with tensors takes no memory of a GPU."""

    def save(obj: object, f: Any, *arguments: Any, **keywords: Any) -> None:
        if isinstance(f, (str, os.PathLike)):
            Path(f).touch()

    torch.save = save  # type: ignore[assignment]
