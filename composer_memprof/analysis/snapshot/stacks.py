"""Distinct stacks of a snapshot, numbered."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from composer_memprof.analysis.snapshot.model import Frame, Stack
from composer_memprof.analysis.snapshot.ordering import stable_order
from composer_memprof.analysis.snapshot.safe_pickle import SnapshotError
from composer_memprof.analysis.snapshot.untrusted import texts, whole

#: Lists of frames that look alike at three places before all their frames are compared by identity.
_MOST_ALIKE = 4
_PLAIN = {str, int, type(None)}
#: torch writes the line -1 of a frame that has none, as in compiled code, as a number of 64 bits without a sign.
_NO_LINE = (-1, 2**64 - 1)
#: Files through which this package passes the program's calls on to torch: a simulated GPU, and a dispatch mode.
_PASSED_ON = re.compile(
    r'(^|[/\\])composer_memprof[/\\](simulated_gpu[/\\]|simulation[/\\]observer\.py|recorders[/\\]dispatch\.py)'
)
#: The file of torch by which such a call goes on.
_GOES_ON = ('/torch/_ops.py', '\\torch\\_ops.py')


class StackIndex:
    """Numbers each distinct stack; 0 is the empty one. Lists and frames that a pickle shares are read once.

    Lists are identified by ``id``, so they must stay alive as long as this object is used.
    """

    def __init__(self) -> None:
        self.stacks: list[Stack] = [()]
        self._by_stack: dict[Stack, int] = {(): 0}
        self._frames: dict[int, Frame] = {}
        # torch writes a new list of shared frames for each event. The first, middle and last frame find the few lists
        # that may be equal. If they are many, the identities of all frames decide.
        self._alike: dict[tuple[int, ...], list[tuple[list[Any], int]]] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}

    def indices(self, lists: list[Any]) -> np.ndarray:
        """The number of each list of frames, int32."""
        if not set(map(type, lists)) <= {list}:
            raise SnapshotError('a stack must be a list of frames')
        keys = np.fromiter(map(id, lists), np.uint64, len(lists))
        order = stable_order(keys)
        is_first = np.diff(keys[order], prepend=np.uint64(0)) != 0
        firsts = order[is_first]  # of each list, the first place
        found = np.zeros(len(lists), np.int32)
        for place in np.sort(firsts).tolist():
            found[place] = self._index(lists[place])
        found[order] = found[firsts][np.cumsum(is_first) - 1]
        return found

    def _index(self, frames: list[Any]) -> int:
        if not frames:
            return 0
        count = len(frames)
        few = (count, id(frames[0]), id(frames[count // 2]), id(frames[-1]))
        alike = self._alike.get(few)
        if alike is None:
            alike = self._alike[few] = []
        for known, index in alike:
            if known == frames:
                return index
        if len(alike) < _MOST_ALIKE:
            index = self._new(frames)
            alike.append((frames, index))
            return index
        key = tuple(map(id, frames))
        found = self._by_frames.get(key)
        if found is None:
            found = self._by_frames[key] = self._new(frames)
        return found

    def _new(self, frames: list[Any]) -> int:
        stack = _of_program(tuple(map(self._frame, frames)))
        index = self._by_stack.setdefault(stack, len(self.stacks))
        if index == len(self.stacks):
            self.stacks.append(stack)
        return index

    def _frame(self, frame: Any) -> Frame:
        known = self._frames.get(id(frame))
        if known is None:
            if type(frame) is not dict or not set(map(type, frame.values())) <= _PLAIN:
                raise SnapshotError('a frame must be a mapping of text and numbers')
            filename, name = texts((frame.get('filename', '?'), frame.get('name', '?')), 'frames')
            known = self._frames[id(frame)] = Frame(filename, _line(frame), name)
        return known


def _line(frame: dict[str, Any]) -> int:
    return 0 if frame.get('line') in _NO_LINE else whole(frame, 'line', 0)


def _of_program(stack: Stack) -> Stack:
    """The stack without the frames of calls that this package passed on. The program would have none of them without it."""
    passed_on = [_PASSED_ON.search(frame.filename) is not None for frame in stack]
    if not any(passed_on):
        return stack
    goes_on = [frame.filename.endswith(_GOES_ON) and outer for frame, outer in zip(stack, [*passed_on[1:], False])]
    return tuple(frame for frame, *left_out in zip(stack, passed_on, goes_on) if not any(left_out))
