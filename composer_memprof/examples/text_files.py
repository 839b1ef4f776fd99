"""Any text files as training data, byte by byte."""

from __future__ import annotations

import glob
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Union

import torch
from composer.utils import dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class ByteSequences(Dataset):
    """Pieces of ``seq_len`` bytes, one after the other; a label is the byte after. ``data`` is a uint8 tensor."""

    def __init__(self, data: Tensor, seq_len: int) -> None:
        self.data = data
        self.seq_len = seq_len

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.seq_len

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = index * self.seq_len
        piece = self.data[start : start + self.seq_len + 1].long()
        return {'input_ids': piece[:-1], 'labels': piece[1:]}


def text_files(
    paths: Union[str, Sequence[str]],
    batch_size: int = 16,
    seq_len: int = 128,
    num_workers: int = 0,
    max_bytes: int = 8_000_000,
    shuffle: bool = True,
) -> DataLoader:
    """A loader over text files.

    Args:
        paths (str | Sequence[str]): files, or globs (``**`` for any depth). ``{stdlib}`` stands for the folder of
            Python's standard library, text that every machine has.
        batch_size (int): sequences a batch, on each rank. Default: ``16``.
        seq_len (int): bytes a sequence. Default: ``128``.
        num_workers (int): processes that load. Default: ``0``.
        max_bytes (int): to read at most, from the files in order of name. Default: 8 MB.
        shuffle (bool): the sequences, anew with each epoch. Default: ``True``.

    Raises:
        ValueError: if no file is found, or they hold less than a batch.
    """
    patterns = [paths] if isinstance(paths, str) else list(paths)
    patterns = [pattern.replace('{stdlib}', sysconfig.get_path('stdlib')) for pattern in patterns]
    files = sorted(
        {name for pattern in patterns for name in glob.glob(pattern, recursive=True) if Path(name).is_file()}
    )
    if not files:
        raise ValueError(f'paths={patterns!r}: no file is there')
    content = bytearray()
    for name in files:
        if len(content) >= max_bytes:
            break
        content += Path(name).read_bytes()
    dataset = ByteSequences(torch.frombuffer(content[:max_bytes], dtype=torch.uint8), seq_len)
    if len(dataset) < batch_size * dist.get_world_size():
        raise ValueError(f'paths={patterns!r}: {len(content)} bytes are less than a batch of {batch_size} x {seq_len}')
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=dist.get_sampler(dataset, shuffle=shuffle, drop_last=True),
        num_workers=num_workers,
        drop_last=True,
    )
