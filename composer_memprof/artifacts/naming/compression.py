"""The table of codecs, from which all names of compressed artifacts are made and read.

Imports neither Composer nor torch, because ``push`` must start fast.
"""

from __future__ import annotations

import functools
import gzip
import importlib
import io
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Optional, Union, cast

from composer_memprof.artifacts.reading.regular_files import open_regular
from composer_memprof.messages import must_be

#: The name of a codec, or ``'none'``. ``True`` is ``'gzip'`` and ``False`` is ``'none'``, as before there were names.
Compress = Union[bool, str]


@dataclass(frozen=True)
class Codec:
    """A compression.

    Args:
        name (str): in a config.
        suffix (str): appended to the name of a compressed file.
        magic (bytes): the beginning of every compressed file.
        open_for_write (Callable): opens a path for writing compressed.
        open_for_read (Callable): opens a path, or an open file, for reading decompressed.
    """

    name: str
    suffix: str
    magic: bytes
    open_for_write: Callable[[Path], io.BufferedIOBase]
    open_for_read: Callable[[Union[Path, IO[bytes]]], io.BufferedIOBase]


class CodecMissingError(ValueError):
    """The package of a codec is not installed. The message is one line, and says how to install it."""


class DamagedError(ValueError):
    """A compressed file is damaged or cut short."""


def _open_gzip(file: Union[Path, IO[bytes]]) -> io.BufferedIOBase:
    return gzip.GzipFile(file, 'rb') if isinstance(file, Path) else gzip.GzipFile(fileobj=file, mode='rb')


def _zstandard() -> Any:
    try:
        return importlib.import_module('zstandard')
    except ImportError:
        raise CodecMissingError(
            "compress='zstd' needs a package that is not installed: pip install 'composer_memprof[zstd]'"
        ) from None


def _write_zstd(path: Path) -> io.BufferedIOBase:
    # Level 3, its default: smaller than gzip's 6 here, and several times as fast.
    return cast('io.BufferedIOBase', _zstandard().open(path, 'wb'))


def _open_zstd(file: Union[Path, IO[bytes]]) -> io.BufferedIOBase:
    return io.BufferedReader(_ZstdReader(file), 1 << 20)


#: Bytes of a zstd file to read at once: few, because they may unpack to thousands of times as many.
_PACKED = 1 << 14


class _ZstdReader(io.RawIOBase):
    """A reader of zstd whose errors of a damaged file have one class, as those of gzip's reader."""

    def __init__(self, file: Union[Path, IO[bytes]]) -> None:
        self._zstandard = _zstandard()
        self._owned = open(file, 'rb') if isinstance(file, Path) else None  # noqa: SIM115
        self._packed: Any = self._owned or file
        # The package's own reader takes a file that is cut short for whole.
        self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        self._ready = b''

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._frame.eof:
            packed = self._packed.read(_PACKED)
            if not packed:
                raise DamagedError('it is cut short')
            try:
                self._ready = self._frame.decompress(packed)
            except self._zstandard.ZstdError as error:
                raise DamagedError(str(error)) from None
        data, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed and self._owned is not None:
            self._owned.close()
        super().close()


GZIP = Codec('gzip', '.gz', b'\x1f\x8b', functools.partial(gzip.GzipFile, mode='wb', compresslevel=6), _open_gzip)
ZSTD = Codec('zstd', '.zst', b'\x28\xb5\x2f\xfd', _write_zstd, _open_zstd)
CODECS = (GZIP, ZSTD)
#: The errors of reading a damaged file, beside OSError.
DAMAGE = (EOFError, zlib.error, DamagedError)


def codec_for(compress: Compress) -> Optional[Codec]:
    """The codec that the setting ``compress`` chooses; None for no compression."""
    name = {True: GZIP.name, False: 'none'}.get(compress, compress) if isinstance(compress, bool) else compress
    return next((codec for codec in CODECS if codec.name == name), None)


def check_compress(compress: object) -> None:
    """Refuse a setting that names no codec, or a codec whose package is missing.

    Raises:
        ValueError: naming the value and what is allowed, or how to install the package.
    """
    names = ['none', *(codec.name for codec in CODECS)]
    if not isinstance(compress, bool) and compress not in names:
        raise must_be(
            'compress', f'{", ".join(names[:-1])} or {names[-1]} (or true for gzip, false for none)', compress
        )
    if codec_for(compress) is ZSTD:
        _zstandard()


def agreed_compress(compress: Compress, filename: str, *, use_gzip: bool = False) -> Compress:
    """The one codec that three parameters choose together; a ``filename`` chooses by its suffix.

    >>> agreed_compress('none', 'rank{rank}.json.gz')
    'gzip'

    Raises:
        ValueError: if two parameters choose different codecs.
    """
    check_compress(compress)
    chosen = {
        f'compress={compress!r}': codec_for(compress),
        f'use_gzip={use_gzip}': GZIP if use_gzip else None,
        f'filename={filename!r}': codec_of(filename),
    }
    chosen = {parameter: codec for parameter, codec in chosen.items() if codec is not None}
    if len({codec.name for codec in chosen.values() if codec is not None}) > 1:
        raise ValueError(f'{" and ".join(chosen)} differ; give one of them')
    return next((codec.name for codec in chosen.values() if codec is not None), 'none')


def suffixes() -> tuple[str, ...]:
    """The suffixes of all codecs: ``('.gz', '.zst')``."""
    return tuple(codec.suffix for codec in CODECS)


def codec_of(name: str) -> Optional[Codec]:
    """The codec whose suffix ``name`` has."""
    return next((codec for codec in CODECS if name.endswith(codec.suffix)), None)


def add_suffix(name: str, compress: Compress) -> str:
    """``name`` with the suffix of the codec that the setting ``compress`` chooses.

    >>> add_suffix('.json', 'gzip'), add_suffix('.json', 'zstd'), add_suffix('.json', 'none')
    ('.json.gz', '.json.zst', '.json')
    """
    codec = codec_for(compress)
    return name if codec is None else name + codec.suffix


def strip_suffix(name: str) -> str:
    """``name`` without the suffix of a codec.

    >>> strip_suffix('trace.json.gz'), strip_suffix('trace.json')
    ('trace.json', 'trace.json')
    """
    codec = codec_of(name)
    return name if codec is None else name.removesuffix(codec.suffix)


def open_for_read(path: Path) -> io.BufferedIOBase:
    """Open a regular file that may be compressed, as its name says. A damaged file raises OSError or one of ``DAMAGE``."""
    codec = codec_of(path.name)
    file = open_regular(path)
    if codec is None:
        return file
    file.close()
    return codec.open_for_read(path)


def codec_by_content(file: IO[bytes]) -> Optional[Codec]:
    """The codec by which ``file`` begins. ``file`` must be seekable, and is at its start again afterwards."""
    head = file.read(max(len(codec.magic) for codec in CODECS))
    file.seek(0)
    return next((codec for codec in CODECS if head.startswith(codec.magic)), None)


def compress_file(source: Path, target: Path, codec: Codec) -> None:
    """Write the content of ``source``, compressed, to ``target``."""
    with open(source, 'rb') as plain, codec.open_for_write(target) as compressed:
        shutil.copyfileobj(plain, compressed, 1 << 20)
