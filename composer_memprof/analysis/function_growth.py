"""Growth by function, from MemProfiler's ``memory_stats.yaml`` or finetuning-scheduler's.

The file is not trusted. It is read line by line, without a YAML library: each entry is a key of its own and numbers below
it, which is all that both tools write. Other values are passed over.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Optional

from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError, open_decompressed
from composer_memprof.artifacts.naming.compression import DAMAGE
from composer_memprof.artifacts.reading.regular_files import open_regular
from composer_memprof.messages import printable

#: Bytes of a file, decompressed, and of a line.
_MOST_BYTES, _MOST_OF_LINE = 256 << 20, 64 << 10
#: Of a file, compressed or not.
_NAME = re.compile(r'\.ya?ml(\.[^.]+)?$')
_KEY = re.compile(r'(\d{1,9})\.(.+)\.(\d{1,12})\.(start|end)', re.DOTALL)
_RSS, _ALLOCATED, _SAVED = 'rss', 'allocated_bytes.all.current', 'saved_bytes_diff'


class FunctionStatsError(SnapshotError):
    """The file does not hold readings of functions. The message is one line."""


@dataclass(frozen=True)
class CallGrowth:
    """One call: its number, and by how many bytes each kind of memory grew; None where it was not read.

    Args:
        iteration (int): as in the file.
        rss (int, optional): of the process.
        allocated (int, optional): of the CUDA allocator.
        saved (int, optional): bytes that autograd saved in the call.
    """

    iteration: int
    rss: Optional[int]
    allocated: Optional[int]
    saved: Optional[int]


@dataclass(frozen=True)
class FunctionGrowth:
    """The calls of one function on one rank, sizes in bytes.

    Args:
        rank (int): the rank.
        function (str): its name.
        rss (int, optional): by how much all calls together raised the resident memory.
        allocated (int, optional): likewise what the CUDA allocator has allocated.
        calls (list[CallGrowth]): those that were read at their start and their end, in the order of the file.
    """

    rank: int
    function: str
    rss: Optional[int]
    allocated: Optional[int]
    calls: list[CallGrowth]


def is_function_stats(path: Path) -> bool:
    """True if the file's name is that of readings of functions."""
    return _NAME.search(path.name) is not None


def read_function_growth(path: Path) -> list[FunctionGrowth]:
    """The growth by function, largest first: by allocated bytes where they are known, else by resident memory.

    Raises:
        FunctionStatsError: if the file does not hold readings of functions.
        OSError: if it can't be read.
    """
    try:
        with open_regular(path) as raw:
            functions = _by_function(open_decompressed(raw, _MOST_BYTES))
    except FunctionStatsError as error:
        raise FunctionStatsError(f'{printable(str(path))} has no readings of functions: {error}') from None
    except (SnapshotError, ValueError, *DAMAGE) as error:
        reason = printable(' '.join(str(error).split())[:200])
        raise FunctionStatsError(f'{printable(str(path))} has no readings of functions: {reason}') from None
    found = [_sum_up(rank, function, calls) for (rank, function), calls in functions.items()]
    return sorted(found, key=lambda one: (-(one.allocated or 0), -(one.rss or 0)))


def _by_function(file: IO[bytes]) -> dict[tuple[int, str], list[CallGrowth]]:
    functions: dict[tuple[int, str], list[CallGrowth]] = {}
    starts: dict[tuple[int, str], tuple[int, dict[str, int]]] = {}
    entries = 0
    for key, values in _entries(file):
        entries += 1
        parts = _KEY.fullmatch(key)
        if parts is None:
            raise FunctionStatsError(f'{printable(key[:60])!r} is not a rank, a function, a call and start or end')
        rank, name, iteration, point = int(parts[1]), printable(parts[2]), int(parts[3]), parts[4]
        which = rank, name
        calls = functions.setdefault(which, [])
        if point == 'start':
            starts[which] = iteration, values
        elif which in starts and starts[which][0] == iteration:
            _, before = starts.pop(which)
            calls.append(
                CallGrowth(
                    iteration, _change(before, values, _RSS), _change(before, values, _ALLOCATED), values.get(_SAVED)
                )
            )
    if not entries:
        raise FunctionStatsError('it is empty')
    return functions


def _change(before: dict[str, int], after: dict[str, int], name: str) -> Optional[int]:
    return after[name] - before[name] if name in before and name in after else None


def _sum_up(rank: int, function: str, calls: list[CallGrowth]) -> FunctionGrowth:
    rss = [call.rss for call in calls if call.rss is not None]
    allocated = [call.allocated for call in calls if call.allocated is not None]
    return FunctionGrowth(rank, function, sum(rss) if rss else None, sum(allocated) if allocated else None, calls)


def _entries(file: IO[bytes]) -> Iterator[tuple[str, dict[str, int]]]:
    """Each key of the mapping with the whole numbers below it."""
    key: Optional[str] = None
    values: dict[str, int] = {}
    left = _MOST_BYTES
    for number, line in enumerate(iter(lambda: file.readline(_MOST_OF_LINE + 1), b''), start=1):
        left -= len(line)
        if len(line) > _MOST_OF_LINE or left < 0:
            raise FunctionStatsError(f'line {number} is too long, or the file has more than {_MOST_BYTES >> 20} MiB')
        text = line.decode('utf-8', 'replace').rstrip()
        if not text or text.startswith(('#', '---', '...')):
            continue
        if not text[0].isspace():
            if key is not None:
                yield key, values
            key, values = _key_of(text, number), {}
        elif key is None:
            raise FunctionStatsError(f'line {number} belongs to no entry')
        else:
            name, _, value = text.strip().rpartition(': ')
            found = _whole(value)
            if found is not None:
                values[_unquoted(name)] = found
    if key is not None:
        yield key, values


def _key_of(text: str, number: int) -> str:
    name, colon, value = text.partition(': ') if text.endswith('{}') else (text[:-1], text[-1], '{}')
    if colon.strip() != ':' or value != '{}':
        raise FunctionStatsError(f'line {number} is not the key of an entry')
    return _unquoted(name)


def _unquoted(name: str) -> str:
    if len(name) > 1 and name[0] == name[-1] == "'":
        return name[1:-1].replace("''", "'")
    if name.startswith('"'):
        try:
            value: Any = json.loads(name)
        except ValueError:
            return name
        return value if type(value) is str else name
    return name


def _whole(value: str) -> Optional[int]:
    try:
        number = float(value) if len(value) <= 40 else math.nan
    except ValueError:
        return None
    return int(number) if abs(number) < 2**63 else None
