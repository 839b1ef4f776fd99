"""Random damage to a snapshot, for the tests of its loader and for a longer run in the benchmarks."""

from __future__ import annotations

import copy
import gzip
import pickle
import random
from collections.abc import Sequence
from typing import Any, Optional

from tests.support.recordings.snapshots import FRAME, TORCH, event, freed, plain, segment

#: Bytes with a meaning for an unpickler: all opcodes, and numbers that are too large.
_OPCODES = [bytes([code]) for code in range(256)]
_PIECES = [
    *_OPCODES,
    b'\x8a\xff',
    b'\x8b\xff\xff\xff\x7f',
    b'r\xff\xff\xff\x7f',
    b'j\xff\xff\xff\x7f',
    b'\x8d\xff\xff\xff\xff\xff\xff\xff\x7f',
    b'\x96\xff\xff\xff\xff\x00\x00\x00\x00',
    b'\x95\xff\xff\xff\xff\xff\xff\xff\x7f',
    b'cos\nsystem\n',
    b'\x8c\x02os\x8c\x06system\x93',
    b'(lp0\n',
    b'I99999999999999999999\n',
    b'F1e999\n',
]


#: Values that a field of a snapshot never or rarely has.
VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 7, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 2**9999, 0.5, float('nan')),
    *('', 'alloc', 'free_completed', 'segment_unmap', 'forward', 'x' * 1000, '\ud800', '\x1b[2J', b'x'),
    *((), [], {}, [[]], [None], {'x': 1}, [[0, 0, 'forward']], (0, 0)),
]


def the_content() -> dict[str, Any]:
    """A small snapshot with every kind of content."""
    frames = [FRAME, TORCH]
    events = [event('alloc', 64 * i, 8 + i, frames, i) for i in range(20)]
    events += [*freed(640, 18, time=20), event('segment_alloc', 4096, 512, time=21), event('oom', 0, 7, time=22)]
    ours = {
        'device': 'cuda',
        'version': 1,
        'phases': [[0, 1, 'forward'], [9, 1, 'backward'], [15, 2, 'forward']],
        'modules': [[0, 'net.0'], [5, '']],
        'tensors': [[3, 64, 8, 'parameter', 'net.0.weight']],
        'oom': {'requested': 7, 'message': 'out'},
    }
    return plain(*events, segments=[segment((64, 9), (128, 10))], **ours)


def a_whole_snapshot(protocol: int = 4) -> bytes:
    return pickle.dumps(the_content(), protocol=protocol)


def mangled(
    random_: random.Random, content: Optional[dict[str, Any]] = None, values: Sequence[Any] = tuple(VALUES)
) -> bytes:
    """A valid pickle of a snapshot with one to four values replaced, removed, repeated or exchanged."""
    content = copy.deepcopy(content or the_content())  # other tests use its frames too
    for _ in range(random_.randint(1, 4)):
        where: Any = content
        while True:
            inner = [value for value in (where.values() if isinstance(where, dict) else where) if _is_container(value)]
            if not inner or random_.random() < 0.25:
                break
            where = random_.choice(inner)
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            break
        kind, key = random_.randrange(4), random_.choice(keys)
        if kind == 0:
            del where[key]
        elif kind == 1 and isinstance(where, list):
            where.insert(random_.choice(keys), where[key])
        elif kind == 2:
            other = random_.choice(keys)
            where[key], where[other] = where[other], where[key]
        else:
            where[key] = copy.deepcopy(random_.choice(values))
    return pickle.dumps(content, protocol=4)


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, dict)) and len(value) > 0


def damaged(content: bytes, random_: random.Random) -> bytes:
    """The content with one to four places flipped, cut, replaced, repeated or removed; sometimes gzipped."""
    found = bytearray(content)
    for _ in range(random_.randint(1, 4)):
        place = random_.randrange(max(len(found), 1))
        kind = random_.randrange(6)
        if kind == 0 and found:
            found[place] = random_.randrange(256)
        elif kind == 1:
            found[place:place] = random_.choice(_PIECES)
        elif kind == 2:
            piece = random_.choice(_PIECES)
            found[place : place + len(piece)] = piece
        elif kind == 3:
            del found[place : place + random_.randint(1, 16)]
        elif kind == 4:
            other = random_.randrange(max(len(found), 1))
            found[place:place] = found[other : other + random_.randint(1, 64)]
        elif random_.random() < 0.2:
            del found[place:]
    if random_.random() < 0.1:
        zipped = bytearray(gzip.compress(bytes(found), 1))
        zipped[random_.randrange(len(zipped))] ^= 1 << random_.randrange(8)
        return bytes(zipped)
    return bytes(found)
