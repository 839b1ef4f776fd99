"""The table of codecs. Whatever makes or reads the name of a compressed artifact asks here.

Imports neither Composer nor torch, as ``push`` does not.
"""

from __future__ import annotations

import functools
import gzip
import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional


@dataclass(frozen=True)
class Codec:
    """A compression.

    Args:
        name (str): for people.
        suffix (str): appended to the name of a compressed file.
        open_for_write (Callable): opens a path; what is written is compressed.
        open_for_read (Callable): opens a path; what is read is decompressed.
    """

    name: str
    suffix: str
    open_for_write: Callable[[Path], io.BufferedIOBase]
    open_for_read: Callable[[Path], io.BufferedIOBase]


GZIP = Codec('gzip', '.gz', functools.partial(gzip.GzipFile, mode='wb', compresslevel=6), gzip.GzipFile)
CODECS = (GZIP,)


def codec_for(compress: bool) -> Optional[Codec]:
    """The codec that ``compress`` stands for; None for no compression."""
    return GZIP if compress else None


def suffixes() -> tuple[str, ...]:
    """The suffixes of all codecs: ``('.gz',)``."""
    return tuple(codec.suffix for codec in CODECS)


def add_suffix(name: str, compress: bool) -> str:
    """``'.json.gz'`` from ``'.json'`` if ``compress``, otherwise ``name``.

    >>> add_suffix('.json', True)
    '.json.gz'
    """
    codec = codec_for(compress)
    return name if codec is None else name + codec.suffix


def strip_suffix(name: str) -> str:
    """``name`` without the suffix of a codec.

    >>> strip_suffix('trace.json.gz'), strip_suffix('trace.json')
    ('trace.json', 'trace.json')
    """
    for suffix in suffixes():
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name


def is_compressed(name: str) -> bool:
    """True if ``name`` has the suffix of a codec."""
    return name.endswith(suffixes())


def open_for_read(path: Path) -> io.BufferedIOBase:
    """Open a file that may be compressed, as its name says. Errors of a damaged one are OSError, EOFError, zlib.error."""
    codec = next((codec for codec in CODECS if path.name.endswith(codec.suffix)), None)
    return open(path, 'rb') if codec is None else codec.open_for_read(path)


def compress_file(source: Path, target: Path, codec: Codec) -> None:
    """Write the content of ``source``, compressed, to ``target``."""
    with open(source, 'rb') as plain, codec.open_for_write(target) as compressed:
        shutil.copyfileobj(plain, compressed, 1 << 20)
