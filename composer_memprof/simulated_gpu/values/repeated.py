"""Answers that end a loop: a script may go on until a value has converged, which no guess ever does.

Reads of one line are counted between steps of an optimizer. After many of them the line reads something else, once or for as
long as it takes to have read all that it could: whatever the loop waits for is among it.
"""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Optional

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from composer_memprof.simulated_gpu.values import reads
from composer_memprof.simulated_gpu.values.known import GUESSED, REAL

#: Reads by which the source says that a loop ends; and by which something else is decided, or nobody knows what.
OF_A_LOOP, OF_OTHERS = 50, 2000
_SMALL, _LARGE, _MANY = 1e-30, 1e30, 1024
#: An error that a solver accepts, and by which it makes its next step longer.
_ACCEPTED = 1e-9
#: A loop that has got so many other answers since the last step, and in whose function the script fails, is ended by none.
_ENDLESS = 4
_counts: dict[reads.Spot, int] = {}
#: How often a spot has given another answer since the last step.
_answered: Counter[reads.Spot] = Counter()
#: Files and lines from which a step was called, and, since the last one, the places that read a guess by which one of the
#: loops around such a line may have ended.
_stepped_at: set[tuple[str, int]] = set()
_ends: dict[tuple[str, str], Any] = {}


def install() -> None:
    """Count anew after each step."""
    register_optimizer_step_pre_hook(_step_begins)
    register_optimizer_step_post_hook(_step_ends)
    atexit.register(_note_end)


def may_have_ended() -> bool:
    """Whether a guess was read since the last step, by which the loop of the steps may have ended."""
    return bool(_ends)


def _step_begins(*_: Any) -> None:
    _ends.clear()
    frame = sys._getframe(1)
    while frame is not None:
        _stepped_at.add((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]


def _step_ends(*_: Any) -> None:
    _counts.clear()
    _answered.clear()
    _ends.clear()  # a closure may read within the step


def _note_end() -> None:
    """Note how the script ended: by a guess, or in a loop that no answer ended."""
    error = getattr(sys, 'last_value', None)
    if error is None:
        for place, value in _ends.items():
            reads.note_at(place, reads.END, value, GUESSED)
        return
    lines = set(_lines_of_failure(error))
    for spot, count in _answered.items():
        if count >= _ENDLESS and spot[0] in lines:
            reads.note_at(spot[:2], reads.ENDLESS, f'{count} other answers', GUESSED)


def _lines_of_failure(error: BaseException) -> Iterator[str]:
    """Each line of the functions that failed, as ``file:line``."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        yield from (f'{code.co_filename}:{line}' for *_, line in code.co_lines() if line is not None)
        trace = trace.tb_next


def answer(value: Any, sure: int, among: int = 0) -> Any:
    """``value``, or another one where the line has read for so long that it waits for it.

    Args:
        among: a whole number may be each one below this; 0 if nobody knows.
    """
    if sure == REAL or reads.is_by_torch():  # its loops end by themselves
        return value
    spot = reads.spot()
    count = _counts.get(spot, 0)
    _counts[spot] = count + 1
    if sure != GUESSED and count < OF_A_LOOP:
        return value
    use = reads.use()
    if sure == GUESSED and any(map(_has_steps, use.loops)):
        _ends[spot[:2]] = value
    if count < OF_A_LOOP:
        return _selecting(value, use.goes_nearer, count) if use.selects else value
    most = OF_A_LOOP if sure == GUESSED and use.ends_loop else OF_OTHERS
    if count < most or not use.decides or (use.is_checked and isinstance(value, bool)):
        return value
    number = count - most
    if number + 1 == _how_many(value, among):
        del _counts[spot]
    other = _other(value, among, number)
    if not number:
        reads.note(reads.LOOP, lambda _: f'{other} after {most} others', GUESSED)
        _answered[spot] += 1
    return other


def _has_steps(loop: tuple[str, int, int]) -> bool:
    file, first, last = loop
    return any(at == file and first <= line <= last for at, line in _stepped_at)


def _selecting(value: Any, goes_nearer: Optional[bool], count: int) -> Any:
    """An answer with which the loop comes nearer to its end; where nobody knows which one does, each in turn."""
    if isinstance(value, bool):
        return count % 2 == 1 if goes_nearer is None else goes_nearer
    return _ACCEPTED if isinstance(value, float) and goes_nearer is False else value


def _how_many(value: Any, among: int) -> int:
    return 1 if isinstance(value, bool) else among if among and isinstance(value, int) else 2


def _other(value: Any, among: int, number: int) -> Any:
    """The answer of this number. Of those among so many, the first and the last ones end a text most often."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        if among:
            return number // 2 if number % 2 == 0 else among - 1 - number // 2
        return (0, _MANY)[number]
    return (_SMALL, _LARGE)[number]
