"""Any text files as training data, byte by byte."""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Union

import torch
from composer.utils import dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class ByteSequences(Dataset):
    """Consecutive sequences of ``seq_len`` bytes of ``data``, a uint8 tensor. A label is the next byte."""

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
    """A loader of text files.

    Args:
        paths (str | Sequence[str]): files, or globs (``**`` for any depth). ``{stdlib}`` is the folder of Python's
            standard library, text that every machine has; ``~`` is the home folder.
        batch_size (int): sequences in a batch of one rank. Default: ``16``.
        seq_len (int): bytes in a sequence. Default: ``128``.
        num_workers (int): processes that load. Default: ``0``.
        max_bytes (int): the most bytes to read, from the files in the order of their names. Default: 8 MB.
        shuffle (bool): shuffle the sequences in each epoch. Default: ``True``.

    Raises:
        ValueError: if no file is found, or the files hold less than one batch.
    """
    patterns = [paths] if isinstance(paths, str) else list(paths)
    patterns = [os.path.expanduser(each.replace('{stdlib}', sysconfig.get_path('stdlib'))) for each in patterns]
    files = sorted(
        {name for pattern in patterns for name in glob.glob(pattern, recursive=True) if Path(name).is_file()}
    )
    if not files:
        raise ValueError(f'paths={patterns!r}: no such file')
    content = bytearray()
    for name in files:
        if len(content) >= max_bytes:
            break
        content += Path(name).read_bytes()
    dataset = ByteSequences(torch.frombuffer(content[:max_bytes], dtype=torch.uint8), seq_len)
    if len(dataset) < batch_size * dist.get_world_size():
        raise ValueError(
            f'paths={patterns!r}: {len(content)} bytes are less than one batch of {batch_size} x {seq_len}'
        )
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=dist.get_sampler(dataset, shuffle=shuffle, drop_last=True),
        num_workers=num_workers,
        drop_last=True,
    )
