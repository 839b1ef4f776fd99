"""Which names the libraries of the installed packages need and define: all of CUDA that any of them calls is wanted.

A library that needs a name that nobody defines can't be loaded. Packages are walked again when one was installed or
removed, and a library is read again when it changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

#: Folders that are not entered: NVIDIA's own libraries, which find one another; and what no program loads.
_NOT_ENTERED = ('nvidia', '__pycache__')
#: NVIDIA's libraries that a package brings along, by the beginning of their names. What they define is simulated too.
_OF_NVIDIA = ('libcu', 'libnv', 'libnccl')
#: Of a symbol in a 64-bit ELF file: the name's place, information, the section in which it is defined, value and size.
_SYMBOL = struct.Struct('<IBBHQQ')

#: Names that a library needs, and those that it defines.
_Symbols = tuple[list[str], list[str]]


def needed_symbols(extra: Path, cache: Path, is_wanted: Callable[[str], bool]) -> set[str]:
    """The names that libraries of the installed packages need, without those that one of them, not NVIDIA's, defines.

    Args:
        extra: a folder of libraries that may lie elsewhere.
        cache: the folder for what was read, another one for each ``is_wanted``.
        is_wanted: whether a name is of interest.

    Raises:
        ImportError: without pyelftools.
    """
    folders = [*package_folders(), extra]
    stamps = {str(folder): folder.stat().st_mtime_ns for folder in folders}
    name = hashlib.sha256('\0'.join(stamps).encode() + Path(__file__).read_bytes()).hexdigest()[:16]
    kept_in = cache / f'libraries-{name}.json'
    kept = _read(kept_in)
    if kept.get('folders') != stamps:
        files = {str(path): path for folder in folders for path in _libraries(folder)}
        kept = {'folders': stamps, 'files': dict(_symbols_of(files.values(), kept.get('files', {}), is_wanted))}
        _write(kept_in, kept)
    needed = {name for _, symbols, _ in kept['files'].values() for name in symbols}
    return needed - {name for _, _, symbols in kept['files'].values() for name in symbols}


def package_folders() -> list[Path]:
    """The folders that packages are installed in."""
    names = ('site-packages', 'dist-packages')
    return [folder for folder in map(Path, dict.fromkeys(sys.path)) if folder.name in names and folder.is_dir()]


def _libraries(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NOT_ENTERED]
        yield from (Path(place, name) for name in files if name.endswith('.so') or '.so.' in name)


def _symbols_of(
    libraries: Iterable[Path], kept: Mapping[str, Any], is_wanted: Callable[[str], bool]
) -> Iterator[tuple[str, tuple[int, list[str], list[str]]]]:
    """Each library's time of change and names; those that have not changed are not read again."""
    for path in libraries:
        with contextlib.suppress(OSError):
            changed = path.stat().st_mtime_ns
            before = kept.get(str(path))
            if before is None or before[0] != changed:
                before = (changed, *_symbols(path, is_wanted))
            yield str(path), tuple(before)


def _symbols(library: Path, is_wanted: Callable[[str], bool]) -> _Symbols:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    needed: list[str] = []
    defined: list[str] = []
    with library.open('rb') as file, contextlib.suppress(ELFError):
        elf = ELFFile(file)
        symbols: Optional[Any] = elf.get_section_by_name('.dynsym')
        names: Optional[Any] = elf.get_section_by_name('.dynstr')
        if symbols is None or names is None or elf.elfclass != 64:
            return [], []
        text = names.data()
        is_nvidias = library.name.startswith(_OF_NVIDIA)
        for start, _, _, section, _, _ in _SYMBOL.iter_unpack(symbols.data()):
            name = text[start : text.index(b'\0', start)].decode(errors='replace')
            if not is_nvidias and is_wanted(name):
                (defined if section else needed).append(name)
    return needed, defined


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(path.read_text(encoding='utf-8'))
        return found
    return {}


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f'{path.name}.{os.getpid()}')
    unfinished.write_text(json.dumps(values), encoding='utf-8')
    unfinished.replace(path)
